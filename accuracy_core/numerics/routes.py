"""The routes to a pass, three documented ones and one of ours: any of them is enough, unless a guard fired."""

from __future__ import annotations

import math

import torch

from accuracy_core.numerics.aggregate import Aggregates
from accuracy_core.numerics.plan import Plan
from accuracy_core.numerics.pooled import scatter
from accuracy_core.numerics.precision import ulp
from accuracy_core.numerics.row_stats import RowStats
from accuracy_core.schemas import RouteResult, Tolerances

_NEEDS_BASELINE = "needs a baseline (three-way mode)"


def divergence_limit(rows: RowStats, bits: int, n_ulps: float) -> torch.Tensor:
    """(rows,) `n_ulps * ulp(max(|t_s|, |t_g|))`: how far apart two logits may be that rounding can swap."""
    return n_ulps * ulp(rows.divergence_size, bits)


def two_way_passed(rows: RowStats, plan: Plan, n_ulps: float) -> torch.Tensor:
    """(rows,) bool: every top-k error within its rtol and the divergence in bounds. NaN never passes."""
    within = torch.stack([rows.topk[:, i] <= s.rtol for i, s in enumerate(plan.slices)], -1).all(-1)
    limit = divergence_limit(rows, plan.bits, n_ulps)
    same = rows.target_id == rows.expected_id
    return within & (same | (rows.divergence_gap <= limit))


def two_way_route(passed: torch.Tensor, rows: RowStats, plan: Plan) -> RouteResult:
    """All rows of all prompts within the static limits; `value` is the share of rows that are."""
    share = float(passed.double().mean())
    detail = ""
    if not bool(passed.all()):
        over = rows.topk / torch.tensor([max(s.rtol, 1e-30) for s in plan.slices], dtype=torch.float64)
        worst = over.amax(-1).nan_to_num(nan=math.inf).masked_fill(passed, -math.inf)
        i = int(worst.argmax())
        k = int(over[i].nan_to_num(nan=math.inf).argmax())
        detail = (
            f"{int((~passed).sum())} of {len(passed)} rows; prompt {int(rows.prompt[i])} token {int(rows.token[i])}: "
            f"top-{plan.slices[k].key} error {float(rows.topk[i, k]):.3g}, limit {plan.slices[k].rtol:g}"
        )
    return RouteResult(route="two_way", passed=bool(passed.all()), value=share, threshold=1.0, detail=detail)


def sigma_route(a: Aggregates | None, tolerances: Tolerances) -> RouteResult:
    """`sigma_ratio <= 1`, as documented."""
    threshold = tolerances.aggregate.sigma_ratio
    if a is None:
        return RouteResult(
            route="sigma_ratio", passed=None, value=math.nan, threshold=threshold, detail=_NEEDS_BASELINE
        )
    if math.isnan(a.sigma_ratio):
        return RouteResult(
            route="sigma_ratio", passed=None, value=math.nan, threshold=threshold, detail="no error at all"
        )
    return RouteResult(route="sigma_ratio", passed=a.sigma_ratio <= threshold, value=a.sigma_ratio, threshold=threshold)


def typical_route(a: Aggregates, rows: int, tolerances: Tolerances) -> RouteResult:
    """The typical row is as good as BF16's: ours, beside the documented routes.

    A target exactly as good as BF16 has sigma ratio 1, lands above it half of the time, and a few rows with large
    errors decide by how much; the pooled BC needs more samples than a few prompts of a small vocabulary have. So the
    geometric mean of the L2 ratios is asked too: it must be within the scatter of clean rows around the documented
    sigma threshold, and sigma itself within the documented diagnostic multiplier.
    """
    whole = a.groups[0]
    limit = tolerances.aggregate.sigma_ratio * scatter(rows, tolerances.guards)
    bound = tolerances.aggregate.l2_ratio
    if math.isnan(whole.typical) or math.isnan(a.sigma_ratio):
        return RouteResult(route="typical_ratio", passed=None, value=whole.typical, threshold=limit)
    passed = whole.typical <= limit and a.sigma_ratio <= bound
    detail = f"clean rows scatter up to {limit:.3g}"
    if a.sigma_ratio > bound:
        detail += f"; sigma ratio {a.sigma_ratio:.3g} is above {bound:g}"
    return RouteResult(route="typical_ratio", passed=passed, value=whole.typical, threshold=limit, detail=detail)


def bc_route(a: Aggregates | None, tolerances: Tolerances) -> RouteResult:
    """Pooled BC of the worst generation index; not measured where the samples are too few."""
    threshold = tolerances.aggregate.bc
    if a is None:
        return RouteResult(route="agg_bc", passed=None, value=math.nan, threshold=threshold, detail=_NEEDS_BASELINE)
    if math.isinf(a.sigma_ratio):
        return RouteResult(
            route="agg_bc", passed=None, value=a.agg_bc, threshold=threshold,
            detail="not measured: the target has non-finite logits",
        )  # fmt: skip
    if math.isnan(a.agg_bc):
        detail = f"not measured: fewer than {tolerances.aggregate.bc_min_samples} errors at a generation index"
        return RouteResult(route="agg_bc", passed=None, value=math.nan, threshold=threshold, detail=detail)
    return RouteResult(
        route="agg_bc",
        passed=a.agg_bc >= threshold,
        value=a.agg_bc,
        threshold=threshold,
        detail=f"token {a.agg_bc_token}",
    )
