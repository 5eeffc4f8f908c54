"""Numbers over a whole run."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from accuracy_core.numerics.bhattacharyya import bhattacharyya
from accuracy_core.numerics.bootstrap import ratio_interval
from accuracy_core.numerics.guards import Ratios
from accuracy_core.numerics.norms import l2_floor
from accuracy_core.numerics.plan import Plan
from accuracy_core.numerics.pooled import Group, lean_test
from accuracy_core.numerics.row_stats import RowStats
from accuracy_core.numerics.stream import RunStats
from accuracy_core.numerics.student import ClusteredMean, clustered_mean


@dataclass(frozen=True)
class Aggregates:
    """`sigma_ratio` with its 95 % interval over prompts; `agg_bc` the worst generation index and which; the tests of
    bias and slope; `typical` the pooled L2 ratios. Everything NaN that needs a baseline in two-way mode."""

    sigma_ratio: float
    sigma_interval: tuple[float, float]
    prompt_sigma_ratio: dict[int, float]
    agg_bc: float
    agg_bc_token: int
    lean: ClusteredMean
    bias: ClusteredMean
    slope: ClusteredMean
    groups: list[Group]


def aggregate(run: RunStats, groups: list[Group], plan: Plan) -> Aggregates:
    """Aggregates of a three-way run."""
    rows = run.rows
    floor = l2_floor(rows.ref_l2, plan.bits)
    prompts, inverse = rows.prompt.unique(return_inverse=True)
    target_sq, base_sq, floor_sq = (
        torch.zeros(len(prompts), dtype=torch.float64).index_add_(0, inverse, x.square())
        for x in (rows.l2, rows.base_l2, floor)
    )
    bc = bhattacharyya(run.base, run.target, min_samples=plan.bc_min_samples)
    worst = int(bc.nan_to_num(nan=-1.0).argmin()) if len(bc) else -1
    return Aggregates(
        sigma_ratio=_sigma(target_sq.sum(), base_sq.sum(), floor_sq.sum()),
        sigma_interval=ratio_interval(target_sq, base_sq),
        prompt_sigma_ratio={
            p: _sigma(*v) for p, *v in zip(prompts.tolist(), target_sq, base_sq, floor_sq, strict=True)
        },
        agg_bc=float(bc.min()) if len(bc) and not bool(bc.isnan().any()) else math.nan,
        agg_bc_token=worst,
        lean=lean_test(rows, floor),
        bias=clustered_mean(rows.bias, rows.prompt),
        slope=clustered_mean(rows.slope - rows.base_slope, rows.prompt),
        groups=groups,
    )


def _sigma(target_sq: torch.Tensor, base_sq: torch.Tensor, floor_sq: torch.Tensor) -> float:
    """`RMS(t - f) / RMS(b - f)`: root mean squares about zero, a bias must count.

    Without any base noise the target's rounding step stands in for it; NaN when nothing differs at all.
    """
    if float(base_sq) == 0:
        if float(target_sq) == 0:
            return math.nan
        base_sq = floor_sq
    return math.sqrt(float(target_sq) / float(base_sq)) if float(base_sq) else math.inf


def diagnostics(rows: RowStats, ratio: Ratios) -> dict[str, float]:
    """Figures that are reported and judge nothing."""

    def worst(x: torch.Tensor) -> float:
        return float(x.max()) if len(x) else math.nan

    return {
        "max_linf_ratio": worst(ratio.linf),
        "max_l2_ratio": worst(ratio.l2),
        "mean_kl": float(rows.kl.mean()),
        "max_kl": worst(rows.kl),
        "top1_agreement": float((rows.target_argmax == rows.reference_id).double().mean()),
        "top5_overlap": float(rows.top5_overlap.mean()),
    }
