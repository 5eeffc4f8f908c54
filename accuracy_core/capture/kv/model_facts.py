"""What a model's configuration says about its KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def routed_from(config: Mapping[str, Any]) -> int | None:
    """First layer whose K and V depend on a router's choice of experts: the one after the first sparse layer."""
    if not any(isinstance(config.get(name), int) and config[name] > 1 for name in _EXPERTS):
        return None
    return int(config.get("first_k_dense_replace") or 0) + 1


def values_per_position(config: Mapping[str, Any]) -> int | None:
    """Numbers that one token leaves in the KV cache of all layers, as Hugging Face keeps it; None if unknown."""
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    heads = config.get("num_attention_heads", config.get("n_head"))
    hidden = config.get("hidden_size", config.get("n_embd"))
    if not (isinstance(layers, int) and isinstance(heads, int) and isinstance(hidden, int)) or heads < 1:
        return None
    if config.get("kv_lora_rank"):  # multi-head latent attention: one latent and one rotary key per token
        return layers * (int(config["kv_lora_rank"]) + int(config.get("qk_rope_head_dim") or 0))
    head_dim = int(config.get("head_dim") or hidden // heads)
    return layers * int(config.get("num_key_value_heads") or heads) * head_dim * 2
