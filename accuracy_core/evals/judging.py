"""Thresholds held against scores."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any

from accuracy_core.errors import ConfigurationError
from accuracy_core.evals.readers.scores import ScoreSheet
from accuracy_core.evals.statistics.detectable_drop import detectable_drop_unpaired, smoothed_proportion
from accuracy_core.evals.thresholds import Rule, meets, parse_rule, split_key
from accuracy_core.schemas import ScoreRow, ThresholdResult

_LISTED = 40


def judge(
    thresholds: Mapping[str, Any], sheet: ScoreSheet, reference: ScoreSheet | None
) -> tuple[list[ThresholdResult], list[ScoreRow]]:
    """One result per threshold, and the rows they resolved to.

    A key that names no score fails, with the names that exist. Raises ConfigurationError for a malformed threshold,
    for a key without task that fits several rows, and for a fraction of a reference that was not given.
    """
    rules = {given: parse_rule(given, value) for given, value in thresholds.items()}
    results, rows = [], []
    for given, rule in rules.items():
        row = resolve(given, sheet)
        if row is None:
            results.append(ThresholdResult(given_key=given, passed=False, reason=_missing(given, sheet)))
            continue
        rows.append(row)
        results.append(_held(given, rule, row, reference))
    return results, rows


def resolve(given: str, sheet: ScoreSheet) -> ScoreRow | None:
    """The row a key means, None when there is none. Raises ConfigurationError when it fits several."""
    exact = [row for row in sheet.rows if row.key == given]
    if exact:
        return exact[0]
    task, key = split_key(given)
    if task is not None:
        return None
    fits = [row for row in sheet.rows if f"{row.metric},{row.filter}" == key]
    if len(fits) > 1:
        raise ConfigurationError(
            f"threshold {given!r} fits {len(fits)} scores",
            fix=f"name the task: {', '.join(row.key for row in fits[:_LISTED])}",
        )
    return fits[0] if fits else None


def _held(given: str, rule: Rule, row: ScoreRow, reference: ScoreSheet | None) -> ThresholdResult:
    base = None
    if rule.kind == "fraction_of_reference":
        if reference is None:
            raise ConfigurationError(
                f"threshold {given!r} is a fraction of a reference, and there are no reference results",
                fix="give reference_results, or a number",
            )
        base = next((item.value for item in reference.rows if item.key == row.key), None)
    limit = rule.limit(row.higher_is_better, base)
    passed = meets(row.value, limit, row.higher_is_better)
    bound_name = "minimum" if row.higher_is_better else "maximum"
    kind: Any = bound_name if rule.kind == "bound" else rule.kind
    return ThresholdResult(
        given_key=given,
        key=row.key,
        rule=kind,
        bound=limit,
        value=row.value,
        passed=passed,
        reason="" if passed else _why(row, limit, bound_name, base, rule),
        smallest_detectable_drop=_detectable(row),
        n=row.n,
    )


def _why(row: ScoreRow, limit: float, bound_name: str, base: float | None, rule: Rule) -> str:
    if rule.kind == "fraction_of_reference" and base is None:
        return f"the reference has no score {row.key}"
    if not math.isfinite(row.value):
        return f"the score is {row.value}: never a pass"
    if not math.isfinite(limit):
        return f"the {bound_name} is {limit}: the reference's score is not a number"
    return f"{row.value:.6g} does not reach the {bound_name} {limit:.6g}"


def _detectable(row: ScoreRow) -> float:
    """Only for scores that are proportions; those on other scales have no variance to be known from the score."""
    if not row.n or not row.higher_is_better or not 0 <= row.value <= 1:
        return math.nan
    return detectable_drop_unpaired(row.n, smoothed_proportion(row.value, row.n))


def _missing(given: str, sheet: ScoreSheet) -> str:
    keys = [row.key for row in sheet.rows]
    near = difflib.get_close_matches(given, keys, n=len(keys) or 1, cutoff=0.0)[:_LISTED]
    more = f" and {len(keys) - len(near)} more" if len(keys) > len(near) else ""
    return f"there is no score {given!r}; there are: {', '.join(near) or 'none'}{more}"
