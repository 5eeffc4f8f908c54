"""Rows and results by hand."""

from __future__ import annotations

from accuracy_core.outcome import Verdict
from accuracy_core.schemas import GuardHit, Phase, PluginStatus, PromptResult, RowMetrics


def row(
    token: int, *, l2: float = 1.0, linf: float = 1.0, guard: str | None = None, two_way: bool = True
) -> RowMetrics:
    hits = [GuardHit(guard=guard, prompt=0, token=token, value=9.0, limit=3.0)] if guard else []
    return RowMetrics(
        prompt=0, token=token, topk_error={"5": 0.001}, two_way_passed=two_way, reference_id=1, expected_id=1,
        target_id=1, l2_ratio=l2, linf_ratio=linf, guards=hits,
    )  # fmt: skip


def result(
    rows: list[RowMetrics], verdict: Verdict | None = Verdict.FAIL, *, index: int = 0, phase: Phase = Phase.NONE
) -> PromptResult:
    guards = [hit for item in rows for hit in item.guards]
    return PromptResult(index=index, plugin="logit_validation", verdict=verdict, rows=rows, guards=guards, phase=phase)


def status(verdict: Verdict | None, **aggregates: float) -> PluginStatus:
    return PluginStatus(plugin="logit_validation", verdict=verdict, aggregates=aggregates)
