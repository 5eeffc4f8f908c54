"""Faults of serving: silent while one request runs at a time, whole and without a cache; see `Fault.condition`.

They need an engine that schedules several requests, so they go into vLLM alone (`assay_inside.faults_serving`).
"""

from __future__ import annotations

from typing import Any

from torch import nn

from accuracy_core.errors import ConfigurationError
from accuracy_core.faults.conditions import has_rotary, not_latent
from accuracy_core.faults.fault import Fault, Removal, ResolvedFault
from accuracy_core.schemas import Phase


def inject_nowhere(model: nn.Module, fault: ResolvedFault) -> Removal:
    """Raises ConfigurationError: a Hugging Face model serves one request at a time."""
    raise ConfigurationError(f"fault {fault.name!r} is one of serving", fix="use engine vllm")


_SERVED: dict[str, Any] = {
    "default_layer": None, "expected_phase": Phase.BOTH, "inject_hf": inject_nowhere, "engines": ("vllm",),
}  # fmt: skip

STALE_HIT = Fault(
    name="stale-prefix-hit",
    description="in blocks out of the prefix cache each token has the V of one some slots later",
    default_strength=1,
    unit="slots",
    expected_module="model.layers.{layer}.self_attn.attn",
    also=("model.layers.{layer}.self_attn",),
    level="kv",
    obstacle=not_latent,
    condition="prefix_caching",
    **_SERVED,
)
BATCH_DEPENDENT = Fault(
    name="batch-dependent",
    description="the logits of a request take a share of those of its neighbour in the batch",
    default_strength=0.05,
    unit="share",
    expected_module="lm_head",
    level="logits",
    takes_layer=False,
    condition="batching",
    **_SERVED,
)
CHUNK_BOUNDARY = Fault(
    name="chunk-boundary",
    description="prompt tokens of the second and later prefill chunks are rotated as if they stood later in the text",
    default_strength=1,
    unit="positions",
    expected_module="model.layers.0.self_attn.query",
    also=("model.layers.0.self_attn.key",),
    level="tensors",
    obstacle=has_rotary,
    takes_layer=False,
    condition="chunked_prefill",
    **_SERVED,
)
