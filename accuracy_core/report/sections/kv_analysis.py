"""KV cache analysis: aggregates over all prompts, and the heat maps of each prompt."""

from __future__ import annotations

from typing import ClassVar

from accuracy_core.prompts.evidence import KV
from accuracy_core.prompts.kv_page import headline, kv_body, pattern_text
from accuracy_core.report.evidence import evidence
from accuracy_core.report.rendering import render
from accuracy_core.schemas import ReportSection, RunDir, Tab


class KVAnalysisPlugin(ReportSection):
    """K and V against both references: layer x head, layer x position, guards, pattern and first bad place."""

    name: ClassVar[str] = "kv_analysis"
    title: ClassVar[str] = "KV cache"
    tab: ClassVar[Tab] = Tab.PROMPT

    def applies(self, run_dir: RunDir) -> bool:
        return evidence(run_dir).plugin(KV) is not None

    def render(self, run_dir: RunDir) -> str:
        found = evidence(run_dir)
        results = found.witnesses.kv
        return render(
            "kv_summary.html.j2",
            status=found.plugin(KV),
            rows=[(result, headline(result), pattern_text(result.pattern)) for _, result in sorted(results.items())],
        )

    def render_prompt(self, run_dir: RunDir, index: int) -> str:
        found = evidence(run_dir)
        result = found.witnesses.kv.get(index)
        if result is None:
            return ""
        page = f"prompt_analysis/prompt_{index}/kv_analysis/kv_report.html"
        return render(
            "kv_prompt.html.j2",
            page=page if (run_dir.root / page).exists() else "",
            error=result.error,
            body=kv_body(result, found.tolerances),
        )
