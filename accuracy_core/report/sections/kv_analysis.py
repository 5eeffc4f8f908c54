"""KV cache analysis: its verdict, and its own page where that exists."""

from __future__ import annotations

from typing import ClassVar

from accuracy_core.report.evidence import evidence
from accuracy_core.report.rendering import render
from accuracy_core.schemas import ReportSection, RunDir, Tab

KV = "kv_cache"


class KVAnalysisPlugin(ReportSection):
    """Applies only where a prompt has KV files."""

    name: ClassVar[str] = "kv_analysis"
    title: ClassVar[str] = "KV cache"
    tab: ClassVar[Tab] = Tab.PROMPT

    def applies(self, run_dir: RunDir) -> bool:
        found = evidence(run_dir)
        return any((run_dir.prompt(prompt.index) / "kv_analysis").exists() for prompt in found.prompts.prompts)

    def render(self, run_dir: RunDir) -> str:
        status = evidence(run_dir).plugin(KV)
        return render("kv_summary.html.j2", status=status) if status is not None else ""

    def render_prompt(self, run_dir: RunDir, index: int) -> str:
        folder = run_dir.prompt(index) / "kv_analysis"
        if not folder.exists():
            return ""
        page = (
            f"prompt_analysis/prompt_{index}/kv_analysis/kv_report.html" if (folder / "kv_report.html").exists() else ""
        )
        status = evidence(run_dir).plugin(KV)
        return render("kv_prompt.html.j2", page=page, verdict=status.per_prompt.get(str(index)) if status else None)
