"""Logit validation: aggregates over all prompts, and the panels of each prompt."""

from __future__ import annotations

from typing import ClassVar

from accuracy_core.prompts.triage import phase_text
from accuracy_core.report.evidence import LOGITS, evidence
from accuracy_core.report.logit_columns import logit_columns
from accuracy_core.report.rendering import render
from accuracy_core.schemas import GuardHit, PromptResult, ReportSection, RunDir, Tab


class LogitValidationPlugin(ReportSection):
    """Error map, top1-top2 gap, top-1 ids, top-2 values, ratios, BC and KL per token; guards and routes as tables."""

    name: ClassVar[str] = "logit_validation"
    title: ClassVar[str] = "Logit validation"
    tab: ClassVar[Tab] = Tab.PROMPT

    def applies(self, run_dir: RunDir) -> bool:
        return evidence(run_dir).plugin(LOGITS) is not None

    def render(self, run_dir: RunDir) -> str:
        found = evidence(run_dir)
        return render(
            "logits_summary.html.j2",
            status=found.plugin(LOGITS),
            prompts=found.prompts.prompts,
            results=found.logits,
            phase_text=phase_text,
        )

    def render_prompt(self, run_dir: RunDir, index: int) -> str:
        found = evidence(run_dir)
        result = found.logits.get(index)
        if result is None:
            return ""
        return render(
            "logits_prompt.html.j2",
            result=result,
            columns=logit_columns(result, found.tolerances),
            guards=all_guards(result),
            phase_text=phase_text,
        )


def all_guards(result: PromptResult) -> list[GuardHit]:
    """Guards of the prompt and of its rows, each once, by token."""
    hits = [*result.guards, *(hit for row in result.rows for hit in row.guards)]
    unique = {(hit.guard, hit.batch, hit.token): hit for hit in hits}
    return sorted(unique.values(), key=lambda hit: (hit.token, hit.guard))
