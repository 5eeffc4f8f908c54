"""Which models can have a fault, from their configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from accuracy_core.faults.fault import Config, every_layer

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_SCALED_EMBEDDINGS = ("gemma", "gemma2", "gemma3", "gemma3_text")
_QK_NORMS = ("qwen3", "qwen3_moe", "gemma3", "gemma3_text", "olmo2")
#: architectures that renormalise the weights of the chosen experts without a setting for it
_RENORMALISING = ("mixtral", "gpt_oss")
#: architectures whose query, key and value projections have a bias without a setting for it
_QKV_BIAS = ("qwen2", "qwen2_moe")
#: architectures that normalise what the feed-forward block returns before it is added
_NORM_AFTER_MLP = ("gemma2", "gemma3", "gemma3_text", "olmo2")


def model_type(config: Config) -> str:
    return str(config.get("model_type", ""))


def heads(config: Config) -> tuple[int, int]:
    """(query heads, KV heads)."""
    queries = int(config.get("num_attention_heads") or 0)
    return queries, int(config.get("num_key_value_heads") or queries)


def has_grouped_heads(config: Config) -> str:
    queries, keys = heads(config)
    if is_latent(config) or not 1 < keys < queries:
        return f"{queries} query heads on {keys} KV heads leave only one mapping"
    return ""


def is_latent(config: Config) -> bool:
    """Multi-head latent attention (DeepSeek): the cache holds a compressed vector instead of keys and values."""
    return bool(config.get("kv_lora_rank"))


def not_latent(config: Config) -> str:
    return "latent attention keeps no keys and values per head" if is_latent(config) else ""


def has_rotary(config: Config) -> str:
    known = config.get("rope_parameters") or config.get("rope_theta") or config.get("rope_scaling")
    return "" if known else "the model has no rotary embedding"


def rope_settings(config: Config) -> Iterator[dict[str, Any]]:
    """The rotary settings, one mapping per layer type where a model has several."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    nested = [item for item in found.values() if isinstance(item, dict)]
    yield from nested or [found]


def has_rope_scaling(config: Config) -> str:
    kinds = {item.get("rope_type", item.get("type", "default")) for item in rope_settings(config)}
    return "" if kinds - {"default", None} else "the rotary embedding is not scaled"


def sliding_layers(config: Config) -> Sequence[int]:
    """Layers whose attention is limited to a window."""
    if not config.get("sliding_window") or config.get("use_sliding_window") is False:
        return []
    types = config.get("layer_types")
    if types:
        return [layer for layer, kind in enumerate(types) if kind == "sliding_attention"]
    return list(every_layer(config))


def has_experts(config: Config) -> bool:
    return any(config.get(name) for name in _EXPERTS)


def dense_layers(config: Config) -> Sequence[int]:
    """Layers whose feed-forward block has one gate and one up projection."""
    layers = list(every_layer(config))
    if not has_experts(config):
        return layers
    return layers[: int(config.get("first_k_dense_replace") or 0)]


def expert_layers(config: Config) -> Sequence[int]:
    """Layers with a router and experts."""
    if not has_experts(config):
        return []
    return [layer for layer in every_layer(config) if layer >= int(config.get("first_k_dense_replace") or 0)]


def renormalises_experts(config: Config) -> str:
    if not has_experts(config):
        return "the model has no experts"
    if model_type(config) in _RENORMALISING or config.get("norm_topk_prob"):
        return ""
    return "the weights of the chosen experts are not renormalised in this model"


def has_qkv_bias(config: Config) -> str:
    biased = config.get("attention_bias") or config.get("qkv_bias") or model_type(config) in _QKV_BIAS
    return "" if biased else "the projections have no bias"


def has_qk_norm(config: Config) -> str:
    return "" if model_type(config) in _QK_NORMS else "queries and keys are not normalised in this model"


def keeps_mlp_scale(config: Config) -> str:
    if model_type(config) in _NORM_AFTER_MLP:
        return "a norm behind the MLP takes every scale out again"
    return ""


def is_tied(config: Config) -> str:
    return "" if config.get("tie_word_embeddings") else "the head has a matrix of its own"


def is_scaled_embedding(config: Config) -> str:
    return "" if model_type(config) in _SCALED_EMBEDDINGS else "embeddings are not scaled in this model"


def caps_logits(config: Config) -> str:
    return "" if config.get("final_logit_softcapping") else "logits are not capped in this model"


def caps_attention(config: Config) -> str:
    return "" if config.get("attn_logit_softcapping") else "attention scores are not capped in this model"
