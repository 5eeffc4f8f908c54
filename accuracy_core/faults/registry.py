"""The faults that can be injected, by name."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator, Mapping
from typing import cast

from accuracy_core.errors import ConfigurationError
from accuracy_core.faults.fault import Config, Fault, FaultEngine, ResolvedFault
from accuracy_core.schemas import FaultSpec

#: name -> module of this package and the name of the fault in it
_WHERE = {
    "rope-theta": "rotary:ROPE_THETA",
    "rope-scaling-dropped": "rotary:ROPE_SCALING_DROPPED",
    "position-offset": "rotary:POSITION_OFFSET",
    "attention-scale": "attention:ATTENTION_SCALE",
    "causal-mask-shift": "attention:CAUSAL_MASK",
    "sliding-window-shift": "attention:SLIDING_WINDOW",
    "gqa-mapping": "attention:GQA_MAPPING",
    "attention-softcap-missing": "attention:ATTENTION_SOFTCAP",
    "norm-eps": "norms:NORM_EPS",
    "norm-no-upcast": "norms:NORM_NO_UPCAST",
    "truncation": "norms:TRUNCATION",
    "qk-norm-skipped": "projections:QK_NORM",
    "qkv-bias-dropped": "projections:QKV_BIAS",
    "gate-up-swapped": "projections:GATE_UP_SWAPPED",
    "all-reduce-missing": "projections:ALL_REDUCE",
    "mlp-scale": "mlp_scale:MLP_SCALE",
    "nan-module": "nonfinite:NAN_MODULE",
    "moe-topk-not-renormalised": "experts:MOE_TOP_K",
    "router-order": "experts:ROUTER_ORDER",
    "kv-slot": "kv_cache:KV_SLOT",
    "kv-block-stride": "kv_cache:KV_STRIDE",
    "stale-prefix-cache": "kv_cache:STALE_PREFIX",
    "kv-scale": "kv_cache:KV_SCALE",
    "embedding-scale-missing": "vocabulary:EMBEDDING_SCALE",
    "head-rows-swapped": "vocabulary:HEAD_ROWS",
    "tied-embedding-ignored": "vocabulary:TIED_EMBEDDING",
    "padded-vocabulary-wins": "vocabulary:PADDED_VOCABULARY",
    "logit-softcap-missing": "vocabulary:LOGIT_SOFTCAP",
    "double-bos": "frontend:DOUBLE_BOS",
    "sampler-default": "frontend:SAMPLER_DEFAULT",
    "stale-prefix-hit": "serving:STALE_HIT",
    "batch-dependent": "serving:BATCH_DEPENDENT",
    "chunk-boundary": "serving:CHUNK_BOUNDARY",
}


class FaultRegistry(Mapping[str, Fault]):
    """Name -> fault. A fault's module is imported on first use: its injection needs torch, its name does not."""

    def __init__(self, where: Mapping[str, str]) -> None:
        self._where = dict(where)

    def __getitem__(self, name: str) -> Fault:
        """Raises ConfigurationError, with near names, when there is no such fault."""
        if name not in self._where:
            near = difflib.get_close_matches(name, self._where, n=3, cutoff=0.4)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known faults: {', '.join(sorted(self._where))}"
            raise ConfigurationError(f"unknown fault {name!r}", fix=hint)
        module, _, attribute = self._where[name].partition(":")
        return cast(Fault, getattr(importlib.import_module(f"accuracy_core.faults.{module}"), attribute))

    def __contains__(self, name: object) -> bool:
        return name in self._where

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)


FAULTS = FaultRegistry(_WHERE)


def resolve_fault(
    spec: FaultSpec,
    *,
    num_layers: int | None = None,
    config: Config | None = None,
    engine: FaultEngine | None = None,
) -> ResolvedFault:
    """`spec` with the fault's own defaults filled in.

    A default layer that a model of `num_layers` does not have becomes its last one; with the model's `config` (its
    parsed config.json) it becomes the next one in which the fault can sit. Raises ConfigurationError for an unknown
    name, a setting that the fault does not have, a chosen layer that is not there, and, with `config`, a model that
    cannot have the fault in `engine`.
    """
    fault = FAULTS[spec.name]
    _check_settings(spec, fault)
    if config is not None:
        reason = fault.why_not(config, engine)
        if reason:
            raise ConfigurationError(
                f"fault {spec.name!r} does not apply: {reason}", fix="choose another fault or another model"
            )
        num_layers = config.get("num_hidden_layers", num_layers)
    possible = list(fault.layers(config)) if config is not None else []
    layer = spec.layer if spec.layer is not None else fault.default_layer
    if spec.layer is None and layer is not None:
        if possible:
            layer = next((item for item in possible if item >= layer), possible[-1])
        elif num_layers is not None:
            layer = min(layer, num_layers - 1)
    if num_layers is not None and layer is not None and layer >= num_layers:
        raise ConfigurationError(
            f"fault {spec.name!r} in layer {layer}: the model has {num_layers} layers",
            fix=f"choose a layer from 0 to {num_layers - 1}",
        )
    if possible and layer is not None and layer not in possible:
        raise ConfigurationError(
            f"fault {spec.name!r} cannot sit in layer {layer} of this model", fix=f"choose one of {possible}"
        )
    strength = spec.strength if spec.strength is not None else fault.default_strength
    return ResolvedFault(spec.name, layer, strength, spec.position or 0, dict(spec.params))


def _check_settings(spec: FaultSpec, fault: Fault) -> None:
    """A setting that would be ignored is refused."""
    if spec.layer is not None and not fault.takes_layer:
        raise ConfigurationError(f"fault {spec.name!r} sits in no single layer", fix="leave the layer out")
    if spec.position and not fault.takes_position:
        able = [name for name in FAULTS if FAULTS[name].takes_position]
        raise ConfigurationError(
            f"fault {spec.name!r} cannot begin at a position", fix=f"leave it out, or choose {', '.join(able)}"
        )
