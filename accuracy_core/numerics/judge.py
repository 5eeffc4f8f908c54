"""From measured rows to metrics, guards, routes and verdicts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from accuracy_core.numerics.aggregate import Aggregates, aggregate, diagnostics
from accuracy_core.numerics.guards import Ratios, hits, ratios, row_guards
from accuracy_core.numerics.norms import relative
from accuracy_core.numerics.plan import Plan
from accuracy_core.numerics.pooled import bias_hits, groups, pooled_hits, typical_ratio
from accuracy_core.numerics.precision import ulp
from accuracy_core.numerics.routes import (
    bc_route,
    divergence_limit,
    sigma_route,
    two_way_passed,
    two_way_route,
    typical_route,
)
from accuracy_core.numerics.stream import RunStats
from accuracy_core.numerics.verdict import documented_rule, verdict
from accuracy_core.outcome import Verdict
from accuracy_core.schemas import GuardHit, RouteResult, RowMetrics, Tolerances


@dataclass(frozen=True)
class Judgement:
    """Everything a comparison says. `rows` in the order of the run's table; `metrics` plain numbers by name."""

    verdict: Verdict
    routes: list[RouteResult]
    guards: list[GuardHit]
    rows: list[RowMetrics]
    metrics: dict[str, float]


def judge(run: RunStats, plan: Plan, tolerances: Tolerances, *, rescue: str) -> Judgement:
    """Judge a measured run."""
    table = run.rows
    ratio = ratios(table, plan.bits)
    row_hits: dict[int, list[GuardHit]] = {}
    for row, hit in hits(table, row_guards(run, ratio, plan, tolerances)):
        row_hits.setdefault(row, []).append(hit)
    found = [_missing(p, token, run) for p, token in run.missing] + [h for hs in row_hits.values() for h in hs]
    measured = None
    if plan.three_way:
        measured = aggregate(run, groups(table, ratio, tolerances.guards), plan)
        found += pooled_hits(measured.groups) + bias_hits(measured.lean, tolerances)
    passed = two_way_passed(table, plan, tolerances.n_ulps)
    routes = [
        two_way_route(passed, table, plan),
        sigma_route(measured, tolerances),
        bc_route(measured, tolerances),
    ]
    if measured is not None and rescue != "documented":
        routes.append(typical_route(measured, len(table), tolerances))
    return Judgement(
        verdict=verdict(documented_rule(routes), found, rescue=rescue),
        routes=routes,
        guards=found,
        rows=_row_metrics(run, ratio, passed, row_hits, plan, tolerances),
        metrics=_metrics(run, ratio, measured, tolerances),
    )


def _missing(prompt: int, token: int, run: RunStats) -> GuardHit:
    return GuardHit(
        guard="missing_tokens", prompt=prompt, token=token, value=float(token), limit=float(run.tokens[prompt]),
        detail=f"the target has {token} of {run.tokens[prompt]} tokens: not measured is not passed",
    )  # fmt: skip


def _metrics(run: RunStats, ratio: Ratios, a: Aggregates | None, tolerances: Tolerances) -> dict[str, float]:
    metrics = diagnostics(run.rows, ratio)
    if a is None:
        return metrics
    first = run.rows.token == 0
    ceiling = tolerances.guards.l2_ratio
    whole = a.groups[0]
    return metrics | {
        "sigma_ratio": a.sigma_ratio,
        "sigma_ratio_low": a.sigma_interval[0],
        "sigma_ratio_high": a.sigma_interval[1],
        "agg_bc": a.agg_bc,
        "agg_bc_token": float(a.agg_bc_token),
        "typical_l2_ratio": whole.typical,
        "typical_l2_ratio_limit": whole.limit,
        "typical_l2_ratio_prefill": typical_ratio(ratio.l2[first], ceiling),
        "typical_l2_ratio_decode": typical_ratio(ratio.l2[~first], ceiling),
        "bias": a.bias.mean,
        "bias_se": a.bias.se,
        "bias_t": a.bias.t,
        "lean": a.lean.mean,
        "lean_t": a.lean.t,
        "lean_p": a.lean.p,
        "slope_excess": a.slope.mean,
        "slope_excess_t": a.slope.t,
    }


def _row_metrics(
    run: RunStats,
    ratio: Ratios,
    passed: torch.Tensor,
    row_hits: dict[int, list[GuardHit]],
    plan: Plan,
    tolerances: Tolerances,
) -> list[RowMetrics]:
    """Columns to one model per row: the only place that walks over rows, after all arithmetic is done."""
    r = run.rows
    keys = [s.key for s in plan.slices]
    columns = {
        "prompt": r.prompt,
        "batch": r.batch,
        "token": r.token,
        "two_way_passed": passed,
        "reference_id": r.reference_id,
        "expected_id": r.expected_id,
        "target_id": r.target_id,
        "diverged": r.target_id != r.expected_id,
        "divergence_gap": r.divergence_gap,
        "divergence_limit": divergence_limit(r, plan.bits, tolerances.n_ulps),
        "shift": r.shift,
        "slope": r.slope,
        "linf": relative(r.linf, r.ref_linf),
        "l2": relative(r.l2, r.ref_l2),
        "base_linf": relative(r.base_linf, r.ref_linf),
        "base_l2": relative(r.base_l2, r.ref_l2),
        "linf_ratio": ratio.linf,
        "l2_ratio": ratio.l2,
        "bc": r.bc,
        "kl": r.kl,
        "top1_agree": r.target_argmax == r.reference_id,
        "top5_overlap": r.top5_overlap,
        "bias": r.bias,
        "expected_top2": r.expected_top2,
        "target_top2": r.target_top2,
        "ulp": ulp(r.expected_top2[:, 0], plan.bits),
        "topk": r.topk,
    }
    lists = {name: column.tolist() for name, column in columns.items()}
    made = []
    for i in range(len(r)):
        values = {name: column[i] for name, column in lists.items()}
        topk = dict(zip(keys, values.pop("topk"), strict=True))
        made.append(RowMetrics.model_construct(topk_error=topk, guards=row_hits.get(i, []), **values))
    return made
