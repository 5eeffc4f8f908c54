"""Three-way comparison of one prompt's KV cache, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from accuracy_core.capture.kv.diagnosis import Diagnosis
from accuracy_core.capture.kv.envelope import BaseEnvelope, Noise
from accuracy_core.capture.kv.judge import JudgedSide, judge_side
from accuracy_core.capture.kv.limits import KvLimits, noise_bits
from accuracy_core.capture.kv.metrics import guard_hits, head_metrics, position_ratios
from accuracy_core.capture.kv.sides import WHICH, LayerKv
from accuracy_core.numerics import default_tolerances
from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.schemas import GuardHit, KvHeadMetrics, KvResult, Phase, RouteResult, Tolerances


@dataclass
class _Gathered:
    """What the layers left."""

    layers: list[int] = field(default_factory=list)
    heads: list[KvHeadMetrics] = field(default_factory=list)
    positions: dict[str, list[list[float]]] = field(default_factory=lambda: {"key": [], "value": []})
    guards: list[GuardHit] = field(default_factory=list)
    sigma: list[float] = field(default_factory=list)
    overlap: list[float] = field(default_factory=list)
    typical: list[torch.Tensor] = field(default_factory=list)
    worst: dict[str, float] = field(default_factory=dict)
    written: bool | None = None
    count: int = 0


def compare_kv_caches(
    layers: Iterable[LayerKv],
    *,
    index: int = 0,
    prompt_length: int,
    dtype: str = "bfloat16",
    cache_dtype: str = "auto",
    block_size: int | None = None,
    envelope: BaseEnvelope | None = None,
    routed_from: int | None = None,
    expected_layers: int | None = None,
    tolerances: Tolerances | None = None,
) -> KvResult:
    """Compare K and V of every layer; `layers` in the order of the model, one at a time in memory.

    `index`: number of the prompt. `prompt_length`: rows below it come from prefill, the others from decode steps.
    `dtype`: the target's; `cache_dtype`: of its KV cache. `block_size`: tokens per block of a paged cache, if known.
    `envelope`: noise of the reference over the whole run; without it, over this prompt. `routed_from`: first layer
    whose K and V depend on a router's choice of experts. `expected_layers`: layers that the reference has, if fewer
    than that in `layers` is an error.

    The verdict is `fail` when any guard fires: a value that is not finite, a shape that differs, a cached row that is
    not what attention was given, rows that hold another position's values, a row or a head beyond the noise. No route
    rescues it: they (`sigma_ratio`, `agg_bc`, `typical_ratio`) say how the whole compares.
    """
    tolerances = tolerances or default_tolerances()
    limits = KvLimits.of(tolerances)
    noise = Noise.of(dtype, noise_bits(dtype, cache_dtype), limits)
    envelope = envelope or BaseEnvelope()
    gathered = _Gathered()
    diagnosis = Diagnosis(prompt_length, block_size, cache_dtype, limits)
    mismatch: GuardHit | None = None
    for layer in layers:
        mismatch = _mismatch(layer, index)
        if mismatch is not None:
            gathered.guards.append(mismatch)
            diagnosis.at_shape(layer.layer)
            break
        routed = routed_from is not None and layer.layer >= routed_from
        judged = {
            which: judge_side(
                layer.layer,
                which,
                layer.side(which),
                noise=noise,
                limits=limits,
                envelope=envelope,
                routed=routed,
                cache_dtype=cache_dtype,
            )
            for which in WHICH
        }
        gathered.layers.append(layer.layer)
        gathered.guards += _replicas(layer, index)
        for which in WHICH:
            _gather(gathered, judged[which], index, prompt_length)
        diagnosis.look(layer, judged)
    if expected_layers is not None and mismatch is None and len(gathered.layers) != expected_layers:
        gathered.guards.append(
            GuardHit(
                guard="kv_layers",
                prompt=index,
                token=-1,
                value=float(len(gathered.layers)),
                limit=float(expected_layers),
                detail=f"the target has K and V of {len(gathered.layers)} layers, the reference of {expected_layers}",
            )
        )
    return _result(gathered, diagnosis, index, prompt_length, block_size, tolerances, limits)


def _mismatch(layer: LayerKv, index: int) -> GuardHit | None:
    for which in WHICH:
        side = layer.side(which)
        expected = tuple(side.fp32.shape)
        for name, tensor in (("target", side.target), ("reference", side.expected), ("given", side.given)):
            if tensor is not None and tuple(tensor.shape) != expected:
                return GuardHit(
                    guard="kv_shape",
                    prompt=index,
                    token=-1,
                    value=float(tensor.numel()),
                    limit=float(side.fp32.numel()),
                    detail=f"layer {layer.layer} {which}: {name} is {tuple(tensor.shape)}, FP32 is {expected}, as "
                    "(KV heads, positions, head_dim)",
                )
    return None


def _replicas(layer: LayerKv, index: int) -> list[GuardHit]:
    if not layer.disagreeing:
        return []
    listed = ", ".join(f"head {head} on rank {rank}" for head, rank in layer.disagreeing)
    return [
        GuardHit(
            guard="kv_replicas",
            prompt=index,
            token=-1,
            value=float(len(layer.disagreeing)),
            limit=0.0,
            detail=f"layer {layer.layer}: copies of one KV head differ between tensor-parallel ranks: {listed}",
        )
    ]


def _gather(gathered: _Gathered, side: JudgedSide, index: int, prompt_length: int) -> None:
    here = side.present
    gathered.heads += head_metrics(side)
    gathered.positions[side.which].append(position_ratios(side))
    gathered.guards += guard_hits(side, index, prompt_length)
    gathered.count = max(gathered.count, side.rows.l2.shape[1])
    if side.wrong is not None:
        gathered.written = gathered.written is not False and not bool(side.wrong.any())
    if not bool(here.any()):
        return
    gathered.sigma.append(side.scale())
    gathered.overlap.append(side.layer_bc)
    gathered.typical.append(side.l2_ratio[:, here].flatten())
    for name, value in (
        ("max_l2_ratio", side.l2_ratio[:, here].max()),
        ("max_linf_ratio", side.linf_ratio[:, here].max()),
        ("max_relative_l2", side.relative[:, here].max()),
    ):
        gathered.worst[name] = max(gathered.worst.get(name, 0.0), _known(float(value)))
    cosine = side.rows.cosine()[:, here]
    lowest = float(cosine.min()) if not bool(cosine.isnan().any()) else math.nan
    before = gathered.worst.get("min_cosine", 1.0)
    gathered.worst["min_cosine"] = lowest if math.isnan(lowest) or lowest < before else before


def _known(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _result(
    gathered: _Gathered,
    diagnosis: Diagnosis,
    index: int,
    prompt_length: int,
    block_size: int | None,
    tolerances: Tolerances,
    limits: KvLimits,
) -> KvResult:
    from accuracy_core.numerics.pooled import typical_ratio

    found = diagnosis.found
    guards = [*gathered.guards, *diagnosis.guards(index)]
    measured = bool(gathered.typical)
    typical = typical_ratio(torch.cat(gathered.typical), limits.l2_ratio) if measured else math.nan
    sigma = math.sqrt(sum(x * x for x in gathered.sigma) / len(gathered.sigma)) if gathered.sigma else math.nan
    overlap = min(gathered.overlap, default=math.nan)
    overlap = math.nan if any(math.isnan(x) for x in gathered.overlap) else overlap
    bounds = tolerances.aggregate
    routes = [
        RouteResult(route="sigma_ratio", passed=None if math.isnan(sigma) else sigma <= bounds.sigma_ratio,
                    value=sigma, threshold=bounds.sigma_ratio, detail="RMS over layers of the L2 ratio of K and of V"),
        RouteResult(route="agg_bc", passed=None if math.isnan(overlap) else overlap >= bounds.bc,
                    value=overlap, threshold=bounds.bc, detail="worst layer, K or V"),
        RouteResult(route="typical_ratio", passed=typical <= limits.head_ratio if measured else None,
                    value=typical, threshold=limits.head_ratio, detail="geometric mean of the L2 ratio of all rows"),
    ]  # fmt: skip
    verdict = Verdict.FAIL if guards else Verdict.PASS if measured else None
    phase = Phase.NONE
    if verdict is Verdict.FAIL:
        phase = diagnosis.phase()
    return KvResult(
        index=index,
        outcome=Outcome.NUMERICS if verdict is not None else Outcome.NOT_MEASURED,
        verdict=verdict,
        phase=phase,
        prompt_length=prompt_length,
        positions=gathered.count,
        block_size=block_size,
        heads=gathered.heads,
        position_ratio=gathered.positions,
        layers=gathered.layers,
        cosine_min=gathered.worst.get("min_cosine", math.nan),
        routes=routes,
        aggregates={"sigma_ratio": sigma, "agg_bc": overlap, "typical_l2_ratio": typical, **gathered.worst},
        pattern=found.pattern,
        first_bad=found.place,
        cache_fault=diagnosis.cache_fault,
        written=gathered.written,
        guards=guards,
        evidence=diagnosis.evidence,
    )
