"""Tensor compare: the first divergent module, the module table and the error over depth."""

from __future__ import annotations

from typing import ClassVar

from accuracy_core.prompts.evidence import TENSORS
from accuracy_core.prompts.triage import phase_text
from accuracy_core.report.evidence import evidence
from accuracy_core.report.rendering import render
from accuracy_core.report.tensor_columns import carried_on, tensor_columns, wrong_rows
from accuracy_core.schemas import ReportSection, RunDir, Tab

#: modules in the table that is always on the page; all of them are in the one that unfolds
SHOWN = 8


class TensorCompareSection(ReportSection):
    """Which module's output first differs though its inputs do not, for prefill and decode."""

    name: ClassVar[str] = "tensor_compare"
    title: ClassVar[str] = "Module tensors"
    tab: ClassVar[Tab] = Tab.PROMPT

    def applies(self, run_dir: RunDir) -> bool:
        return evidence(run_dir).plugin(TENSORS) is not None

    def render(self, run_dir: RunDir) -> str:
        found = evidence(run_dir)
        return render(
            "tensors_summary.html.j2",
            status=found.plugin(TENSORS),
            prompts=[prompt for prompt in found.prompts.prompts if prompt.index in found.tensors],
            results=found.tensors,
            escalation=found.analysis.escalation if found.analysis is not None else None,
            phase_text=phase_text,
        )

    def render_prompt(self, run_dir: RunDir, index: int) -> str:
        result = evidence(run_dir).tensors.get(index)
        if result is None:
            return ""
        return render(
            "tensors_prompt.html.j2",
            result=result,
            wrong=wrong_rows(result),
            carried=carried_on(result),
            shown=SHOWN,
            columns=tensor_columns(result),
            phase_text=phase_text,
        )
