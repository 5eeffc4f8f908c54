"""Rows of one prompt as columns: what the panels are drawn from, and nothing else."""

from __future__ import annotations

import math
from typing import Any

from accuracy_core.outcome import Verdict
from accuracy_core.prompts.triage import row_is_bad
from accuracy_core.schemas import PromptResult, RowMetrics, Tolerances

_DIGITS = 5


def logit_columns(result: PromptResult, tolerances: Tolerances | None) -> dict[str, Any]:
    """Columns per batch row, the limits to draw, and the decoded tokens for hover texts."""
    batches = sorted({row.batch for row in result.rows})
    return {
        "tokens": result.tokens,
        "limits": limits(result, tolerances),
        "batches": [
            _batch(batch, [row for row in result.rows if row.batch == batch], passed=result.verdict is Verdict.PASS)
            for batch in batches
        ],
    }


def limits(result: PromptResult, tolerances: Tolerances | None) -> dict[str, Any]:
    """Bounds that were in force. Without a tolerances file: those that the fired guards carry."""
    if tolerances is not None:
        return {
            "rtol": {key: bound[1] for key, bound in tolerances.top_k.items()},
            "l2_guard": tolerances.guards.l2_ratio,
            "linf_guard": tolerances.guards.linf_ratio,
            "diagnostic": tolerances.aggregate.l2_ratio,
            "bc": tolerances.aggregate.bc,
        }
    fired = {hit.guard: hit.limit for row in result.rows for hit in row.guards}
    routes = {route.route: route.threshold for route in result.routes}
    found = {"l2_guard": fired.get("l2_ratio"), "linf_guard": fired.get("linf_ratio"), "bc": routes.get("agg_bc")}
    return {"rtol": {}, **{name: value for name, value in found.items() if value is not None}}


def _batch(batch: int, rows: list[RowMetrics], *, passed: bool) -> dict[str, Any]:
    keys = list(rows[0].topk_error) if rows else []
    return {
        "batch": batch,
        "x": [row.token for row in rows],
        "errors": {key: _column([row.topk_error.get(key, math.nan) for row in rows]) for key in keys},
        "linf": _column([row.linf_ratio for row in rows]),
        "l2": _column([row.l2_ratio for row in rows]),
        "bc": _column([row.bc for row in rows]),
        "kl": _column([row.kl for row in rows]),
        "ulp": _column([row.ulp for row in rows]),
        "gap_expected": _column([_gap(row.expected_top2) for row in rows]),
        "gap_target": _column([_gap(row.target_top2) for row in rows]),
        "expected_top1": _column([_at(row.expected_top2, 0) for row in rows]),
        "expected_top2": _column([_at(row.expected_top2, 1) for row in rows]),
        "target_top1": _column([_at(row.target_top2, 0) for row in rows]),
        "target_top2": _column([_at(row.target_top2, 1) for row in rows]),
        "reference_id": [row.reference_id for row in rows],
        "expected_id": [row.expected_id for row in rows],
        "target_id": [row.target_id for row in rows],
        "diverged": [index for index, row in enumerate(rows) if row.diverged],
        "bad": [index for index, row in enumerate(rows) if (row.bad if passed else row_is_bad(row))],
    }


def _column(values: list[float]) -> list[float | None]:
    """Rounded to 5 significant digits: a panel shows no more, and a report of 100 prompts stays small."""
    return [float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None for value in values]


def _gap(top2: list[float]) -> float:
    return top2[0] - top2[1] if len(top2) > 1 else math.nan


def _at(values: list[float], index: int) -> float:
    return values[index] if len(values) > index else math.nan
