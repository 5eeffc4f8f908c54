"""Grading of a decode step: gates, baselines and the floor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from accuracy_core.grading.result import FILE, GradeResult
from accuracy_core.report.rendering import render
from accuracy_core.schemas import ReportSection, RunDir, Tab


@dataclass(frozen=True)
class Bar:
    """Time per step, `share` of the longest one in percent, and how many times the floor it is."""

    name: str
    seconds: float
    share: float
    over_floor: float
    ours: bool = False


class GradingSection(ReportSection):
    """What a submission's gates measured, why they failed, and what its speed compares to."""

    name: ClassVar[str] = "grading"
    title: ClassVar[str] = "Grading"
    tab: ClassVar[Tab] = Tab.OVERVIEW

    def applies(self, run_dir: RunDir) -> bool:
        return (run_dir.root / FILE).exists()

    def render(self, run_dir: RunDir) -> str:
        result = run_dir.read(run_dir.root / FILE, GradeResult)
        return render("grading.html.j2", result=result, bars=bars(result))


def bars(result: GradeResult) -> list[Bar]:
    """One bar for everything that was measured, slowest first; the submission's own is there when it was timed."""
    base = result.baselines
    named = {
        "this submission": result.seconds_per_step,
        "reference, eager": base.eager,
        "reference, operators only": base.eager_busy,
        "reference, compiled" if result.device == "cpu" else "reference, captured graph": base.compiled,
        "weight-bandwidth floor": base.floor,
    }
    there = {name: seconds for name, seconds in named.items() if math.isfinite(seconds)}
    longest = max(there.values(), default=1.0)
    return [
        Bar(name, seconds, 100 * seconds / longest, seconds / base.floor, name == "this submission")
        for name, seconds in sorted(there.items(), key=lambda item: -item[1])
    ]
