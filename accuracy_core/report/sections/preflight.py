"""Preflight: what the checks of the set-up found, worst first."""

from __future__ import annotations

from typing import ClassVar, get_args

from accuracy_core.prompts.preflight.report import CheckResult, Standing
from accuracy_core.report.evidence import evidence
from accuracy_core.report.rendering import render
from accuracy_core.schemas import ReportSection, RunDir, Tab

_ORDER = get_args(Standing)


class PreflightSection(ReportSection):
    """Every finding with its evidence and fix; checks that found nothing are folded."""

    name: ClassVar[str] = "preflight"
    title: ClassVar[str] = "Preflight"
    tab: ClassVar[Tab] = Tab.OVERVIEW

    def applies(self, run_dir: RunDir) -> bool:
        return evidence(run_dir).preflight is not None

    def render(self, run_dir: RunDir) -> str:
        report = evidence(run_dir).preflight
        assert report is not None
        results = sorted(report.results, key=lambda result: _ORDER.index(result.standing))
        return render(
            "overview_preflight.html.j2",
            found=[result for result in results if result.findings],
            silent=[result for result in results if not result.findings],
            counts=_counts(results),
            total=len(results),
        )


def _counts(results: list[CheckResult]) -> dict[str, int]:
    """Standing -> number of checks, worst first; only those that occur."""
    standings = [result.standing for result in results]
    return {word: standings.count(word) for word in _ORDER if word in standings}
