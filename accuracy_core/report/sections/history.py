"""History: scores, numerics and times of the last runs of this model on this device."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from accuracy_core.report.history import HistoryEntry, HistoryWindow
from accuracy_core.report.history_marks import marks
from accuracy_core.report.rendering import number, render
from accuracy_core.schemas import ReportSection, RunDir, Tab

FILE = "history.json"
_WIDTH, _HEIGHT, _PAD = 320.0, 64.0, 6.0
_STAGES = ("preflight", "evaluate", "task_analysis", "goldens", "prompt_analysis")


@dataclass(frozen=True)
class Line:
    """One value over the runs, as an SVG polyline; `dots` are (x, y, marked, text)."""

    title: str
    points: str
    dots: list[tuple[float, float, bool, str]] = field(default_factory=list)
    low: str = ""
    high: str = ""


class HistorySection(ReportSection):
    """Table of the last runs, newest first, and a line per value; what is worse than before is marked."""

    name: ClassVar[str] = "history"
    title: ClassVar[str] = "History"
    tab: ClassVar[Tab] = Tab.HISTORY

    def applies(self, run_dir: RunDir) -> bool:
        return (run_dir.root / FILE).exists()

    def render(self, run_dir: RunDir) -> str:
        window = run_dir.read(run_dir.root / FILE, HistoryWindow)
        marked = marks(window.entries)
        scores = list(dict.fromkeys(key for entry in window.entries for key in entry.scores))
        stages = [stage for stage in _STAGES if any(stage in entry.stage_s for entry in window.entries)]
        return render(
            "history.html.j2",
            rows=list(reversed(list(zip(window.entries, marked, strict=True)))),
            scores=scores,
            stages=stages,
            lines=[line for line in _lines(window.entries, marked, scores, stages) if line is not None],
            skipped=window.skipped,
            regressions=sum(bool(found) for found in marked),
        )


def _lines(
    entries: list[HistoryEntry], marked: list[dict[str, str]], scores: list[str], stages: list[str]
) -> list[Line | None]:
    def line(title: str, values: list[float], name: str) -> Line | None:
        return _line(title, entries, values, [name in found for found in marked])

    nan = math.nan
    return [
        *(
            line(key, [e.scores[key].value if key in e.scores else nan for e in entries], f"score:{key}")
            for key in scores
        ),
        line("σ ratio", [e.sigma_ratio for e in entries], "sigma_ratio"),
        line("BC", [e.agg_bc for e in entries], "agg_bc"),
        *(
            line(f"{stage.replace('_', ' ')}, seconds", [e.stage_s.get(stage, nan) for e in entries], f"stage:{stage}")
            for stage in stages
        ),
    ]


def _line(title: str, entries: list[HistoryEntry], values: list[float], bad: list[bool]) -> Line | None:
    there = [value for value in values if math.isfinite(value)]
    if not there:
        return None
    low, high = min(there), max(there)
    step = (_WIDTH - 2 * _PAD) / max(len(values) - 1, 1)
    dots: list[tuple[float, float, bool, str]] = []
    for index, value in enumerate(values):
        if math.isfinite(value):
            share = (value - low) / (high - low) if high > low else 0.5
            text = f"run {entries[index].sequence}: {number(value)}"
            dots.append((round(_PAD + index * step, 1), round(_HEIGHT - _PAD - share * (_HEIGHT - 2 * _PAD), 1),
                         bad[index], text))  # fmt: skip
    points = " ".join(f"{x},{y}" for x, y, _, _ in dots)
    return Line(title, points, dots, number(low), number(high))
