"""Taps: the places in a model where a tensor is taken or put, and how they are written.

Two vocabularies:

* A **raw tap** is a place in one engine's module tree: `MODULE:POINT`, where POINT is `out0`, `out1`, … (forward's
  output, or an item of the tuple it returns) or `in0`, `in1`, … (positional tensor argument), or one of `query`, `key`,
  `value`, `attn` on an attention module: what the attention kernel was given after norms and rotary embedding, and
  what it returned. `model.layers.0.self_attn.qkv_proj:out0` is one of vLLM's.
* A **canonical tap** is the dotted name under which every engine's value is compared: the module name of the Hugging
  Face model (`model.layers.1.mlp.down_proj` is that module's output), and these virtual ones:
  `…self_attn.query`, `…self_attn.key`, `…self_attn.value` (rows (tokens, heads * head_dim) as the attention kernel
  reads them), `…self_attn.attn` (what it returns, the input of o_proj), `…mlp.act` (the input of down_proj),
  `model.layers.L` (residual stream after layer L), `model.layers.L.residual_mid` (residual stream after attention),
  `lm_head` (logits).

Every tapped tensor is a matrix of rows, one per position of prompt + forced tokens: (positions, features). Rows below
the prompt's length come from prefill, the others from decode steps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_RAW = re.compile(r"^(?P<module>[A-Za-z0-9_.]*):(?P<point>out\d+|in\d+|query|key|value|attn)$")

_LAYER = re.compile(r"^(?:\w+\.)*(?:layers|h)\.(\d+)(?:\.|$)")

#: prefixes of tensor names in a replay's safetensors file
TAP_PREFIX = "tap."
KV_PREFIX = "kv."


@dataclass(frozen=True, order=True)
class RawTap:
    """A place in one engine's module tree."""

    module: str
    point: str = "out0"

    def __str__(self) -> str:
        return f"{self.module}:{self.point}"

    @classmethod
    def parse(cls, text: str) -> RawTap:
        """From `MODULE:POINT`. Raises ValueError for anything else."""
        found = _RAW.match(text)
        if found is None:
            raise ValueError(f"{text!r} is no tap: write MODULE:out0, MODULE:in0, MODULE:query, …")
        return cls(found["module"], found["point"])

    @property
    def index(self) -> int:
        """Number of the output or argument; -1 for the points of an attention kernel."""
        digits = self.point.lstrip("outin")
        return int(digits) if digits.isdigit() else -1


def layer_of(tap: str) -> int | None:
    """Number of the decoder layer that a canonical tap belongs to; None for what is outside of the layers."""
    found = _LAYER.search(tap)
    return int(found[1]) if found else None


def tap_tensor_name(raw: RawTap | str) -> str:
    """Name of a raw tap's rows in a replay's file; (positions, features) in the engine's dtype."""
    return f"{TAP_PREFIX}{raw}"


def kv_tensor_name(layer: int, which: str) -> str:
    """Name of a layer's cached K (`key`) or V (`value`); (kv_heads, positions, head_dim) in the cache's dtype."""
    return f"{KV_PREFIX}{layer}.{which}"
