"""Module validation: every kind of module, layer and phase with its figures; pages of figures for what failed."""

from __future__ import annotations

from typing import ClassVar

from accuracy_core.outcome import Verdict
from accuracy_core.report.evidence import evidence
from accuracy_core.report.rendering import render
from accuracy_core.schemas import ModuleCheck, ReportSection, RunDir, Tab

_ORDER = {Verdict.FAIL: 0, Verdict.SUSPECT: 1, None: 2, Verdict.PASS: 3}


class ModuleValidationSection(ReportSection):
    """Single modules of the target against the reference's on seeded inputs, worst first."""

    name: ClassVar[str] = "module_validation"
    title: ClassVar[str] = "Module validation"
    tab: ClassVar[Tab] = Tab.OVERVIEW

    def applies(self, run_dir: RunDir) -> bool:
        return evidence(run_dir).modules is not None

    def render(self, run_dir: RunDir) -> str:
        result = evidence(run_dir).modules
        assert result is not None
        return render(
            "module_validation.html.j2",
            result=result,
            checks=sorted(result.checks, key=lambda check: (_ORDER[check.verdict], check.layer)),
            pages={check.name: page for check in result.checks if (page := _page(run_dir, check))},
        )


def _page(run_dir: RunDir, check: ModuleCheck) -> str:
    """The check's page of figures, relative to the report; '' when there is none."""
    if not check.figure or "/" in check.figure:
        return ""
    return f"modules/{check.figure}" if (run_dir.modules / check.figure).exists() else ""
