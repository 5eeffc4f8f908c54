"""Engine consistency: each way of serving against the neutral one, over all prompts and for each of them."""

from __future__ import annotations

from typing import ClassVar

from accuracy_core.consistency.ways import serving_ways, way_title
from accuracy_core.outcome import Verdict
from accuracy_core.prompts.plugins.consistency_summary import place_text
from accuracy_core.report.evidence import evidence
from accuracy_core.report.rendering import number, render
from accuracy_core.schemas import ConsistencyCheck, ConsistencyKind, ReplayConduct, ReportSection, RunDir, Tab


class EngineConsistencySection(ReportSection):
    """What the prefix cache, the batch and pieces of the prefill did to the logits, in units of the dtype's noise."""

    name: ClassVar[str] = "engine_consistency"
    title: ClassVar[str] = "Engine consistency"
    tab: ClassVar[Tab] = Tab.PROMPT

    def applies(self, run_dir: RunDir) -> bool:
        return evidence(run_dir).consistency is not None

    def render(self, run_dir: RunDir) -> str:
        result = evidence(run_dir).consistency
        assert result is not None
        return render(
            "consistency_summary.html.j2",
            result=result,
            fixes={way.kind: way.confirm for way in serving_ways(result.prefill_chunk)},
            way_title=way_title,
            place_text=place_text,
            against=against,
            largest=largest,
            extent=extent,
        )

    def render_prompt(self, run_dir: RunDir, index: int) -> str:
        result = evidence(run_dir).consistency
        own = [
            (check, rows)
            for check in (result.checks if result else [])
            for rows in check.prompts
            if rows.index == index
        ]
        if not own:
            return ""
        return render(
            "consistency_prompt.html.j2", own=own, way_title=way_title, against=against, conduct_text=conduct_text
        )


def against(value: float, check: ConsistencyCheck, limit: str) -> str:
    """A value and the limit that it was held against, on one line: `1.2 of 2`."""
    allowed = check.limits.get(limit)
    return (
        number(value, 3)
        if allowed is None
        else f"{number(value, 3)}\N{NO-BREAK SPACE}of\N{NO-BREAK SPACE}{number(allowed, 3)}"
    )


def largest(check: ConsistencyCheck, name: str, limit: str) -> str:
    """The largest `name` over the prompts, and its limit."""
    values = [getattr(rows, name) for rows in check.prompts]
    return against(max((value for value in values if value == value), default=float("nan")), check, limit)


def extent(check: ConsistencyCheck) -> str:
    """How many prompts say something, and how many failed."""
    failed = sum(rows.verdict is Verdict.FAIL for rows in check.prompts)
    equal = sum(rows.bit_equal for rows in check.prompts)
    total = len(check.prompts)
    words = {0: "none", total: "all"}
    return f"{failed} of {total} fail" if failed else f"{total}, {words.get(equal, equal)} bit-equal"


def conduct_text(kind: ConsistencyKind, conduct: ReplayConduct | None) -> str:
    """How the engine ran a request under the condition, in words; what proves that it took place."""
    if conduct is None or kind is ConsistencyKind.REPEAT:
        return "–"
    if kind is ConsistencyKind.PREFIX_CACHE:
        return f"{conduct.cached_tokens} tokens from the cache"
    if kind is ConsistencyKind.BATCHING:
        return f"in batches of up to {conduct.largest_batch}"
    return f"prompt in {len(conduct.prefill_chunks)} pieces of up to {max(conduct.prefill_chunks)} tokens"
