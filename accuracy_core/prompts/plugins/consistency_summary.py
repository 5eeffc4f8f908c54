"""What the consistency checks say: status of the plugin, and findings in words."""

from __future__ import annotations

import math

from accuracy_core.consistency.ways import serving_ways, way_title
from accuracy_core.outcome import Outcome, Verdict, worst
from accuracy_core.prompts.evidence import CONSISTENCY
from accuracy_core.schemas import (
    ConsistencyCheck,
    ConsistencyKind,
    ConsistencyResult,
    ConsistencyRows,
    Finding,
    GuardHit,
    Phase,
    PluginStatus,
    Severity,
)

_REPEAT_FIX = (
    "an engine that does not repeat itself cannot be judged by single runs: look for atomic additions, memory that is "
    "read before it is written, and races; fix its number of threads"
)

_PHASES = {
    Phase.NONE: "not located",
    Phase.PREFILL: "prefill",
    Phase.DECODE: "decode",
    Phase.BOTH: "prefill and decode",
}


def summary(result: ConsistencyResult) -> PluginStatus:
    """A verdict per prompt and over all of them; a way that the engine claims and was not measured is named.

    Ways that the engine does not have at all are no gap, since they cannot go wrong there, unless nothing is left.
    """
    return PluginStatus(
        plugin=CONSISTENCY,
        outcome=result.outcome,
        verdict=result.verdict,
        worst=_worst_hit(result),
        aggregates=_aggregates(result),
        per_prompt=_per_prompt(result),
        not_measured={way_title(check.kind): check.reason for check in result.unmeasured if _is_gap(check, result)},
    )


def findings(result: ConsistencyResult) -> list[Finding]:
    """One per check that failed, with what to do, and one per way that the engine does not have and nobody misses.

    What was asked for and not measured is in the status.
    """
    fixes = {way.kind: way.confirm for way in serving_ways(result.prefill_chunk)}
    found = [
        Finding(
            check=CONSISTENCY,
            severity=Severity.ERROR,
            outcome=Outcome.NUMERICS,
            evidence=failure_text(check),
            fix=fixes.get(check.kind, _REPEAT_FIX),
        )
        for check in result.failed
    ]
    return found + [
        Finding(
            check=CONSISTENCY,
            severity=Severity.INFO,
            outcome=Outcome.NOT_MEASURED,
            evidence=f"engine consistency, {way_title(check.kind)} not measured: {check.reason}",
        )
        for check in result.unmeasured
        if not _is_gap(check, result)
    ]


def _is_gap(check: ConsistencyCheck, result: ConsistencyResult) -> bool:
    return result.verdict is None or not check.lacking


def failure_text(check: ConsistencyCheck) -> str:
    """A failed check in words: what changes the logits, where first, and by how much."""
    rows = check.worst
    assert rows is not None
    what = "asking again" if check.kind is ConsistencyKind.REPEAT else way_title(check.kind)
    failed = sum(one.verdict is Verdict.FAIL for one in check.prompts)
    more = f" (and {failed - 1} more prompt{'s' if failed > 2 else ''})" if failed > 1 else ""
    return f"{what} changes the logits: {place_text(rows)}: {[*rows.reasons, check.reason][0]}{more}"


def place_text(rows: ConsistencyRows) -> str:
    """`prompt 3 (code), token 5 (decode)`; that there is none when even the worst prompt does not fail by itself."""
    if rows.verdict is not Verdict.FAIL:
        return "no prompt by itself"
    name = f"curated prompt {rows.label}" if rows.index is None else f"prompt {rows.index}"
    label = f" ({rows.label})" if rows.label and rows.index is not None else ""
    token = "" if rows.first_bad_token is None else f", token {rows.first_bad_token} ({_PHASES[rows.phase]})"
    return name + label + token


def _worst_hit(result: ConsistencyResult) -> GuardHit | None:
    if not result.failed:
        return None
    check = max(result.failed, key=lambda one: _over(one))
    rows = check.worst
    assert rows is not None
    value, limit = _counted(check)
    placed = rows.verdict is Verdict.FAIL
    return GuardHit(
        guard=check.kind.value,
        prompt=rows.index if placed and rows.index is not None else -1,
        token=rows.first_bad_token if placed and rows.first_bad_token is not None else -1,
        value=value,
        limit=limit,
        detail=failure_text(check),
    )


def _counted(check: ConsistencyCheck) -> tuple[float, float]:
    """What a failed check is known by, and its limit: the worst row, or all rows where no prompt fails by itself."""
    rows = check.worst
    if rows is not None and rows.verdict is not Verdict.FAIL:
        return check.pooled, check.limits.get("pooled", 0.0)
    return math.nan if rows is None else rows.row, check.limits.get("row", 0.0)


def _over(check: ConsistencyCheck) -> float:
    """How many times over its limit a check is; repeating has none, any difference is too much."""
    value, limit = _counted(check)
    return math.inf if not limit or math.isnan(value) else value / limit


def _aggregates(result: ConsistencyResult) -> dict[str, float]:
    found = {}
    for check in result.checks:
        if check.worst is not None:
            found[f"{check.kind.value}_pooled"] = check.pooled
            found[f"{check.kind.value}_row"] = max(rows.row for rows in check.prompts)
    return found


def _per_prompt(result: ConsistencyResult) -> dict[str, Verdict | None]:
    verdicts: dict[str, list[Verdict]] = {}
    for check in result.checks:
        for rows in check.prompts:
            if rows.index is not None:
                verdicts.setdefault(str(rows.index), []).append(rows.verdict)
    return {index: worst(found) for index, found in verdicts.items()}
