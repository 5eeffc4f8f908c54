"""Which features of a tap belong to which attention head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_QUERY_SIDE = ("query", "attn", "q_proj", "q_norm")
_KEY_SIDE = ("key", "value", "k_proj", "v_proj", "k_norm")


def heads_of(tap: str, config: Mapping[str, Any]) -> int:
    """Number of heads that the features of a canonical tap are made of, head after head; 1 where there are none.

    `config`: the model's configuration as in `config.json`.
    """
    text_config = config.get("text_config") or config
    heads = int(text_config.get("num_attention_heads") or text_config.get("n_head") or 1)
    name = tap.rpartition(".")[2]
    if name in _QUERY_SIDE:
        return heads
    if name in _KEY_SIDE:
        return int(text_config.get("num_key_value_heads") or heads)
    return 1
