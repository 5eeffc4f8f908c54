"""Stage 5: the report."""

from __future__ import annotations

from accuracy_core.pipeline.mirror import synchronised
from accuracy_core.pipeline.run import Run
from accuracy_core.pipeline.stages import recorded
from accuracy_core.prompts.conclusion import Conclusion
from accuracy_core.schemas import RunDir

STAGE = "report"


def build_report(run: Run, conclusion: Conclusion) -> str:
    """Write `combined_report.html`, `report.json` and `junit.xml`. Returns the page's path, or its s3:// address."""
    from accuracy_core.pipeline.history_stage import record_history
    from accuracy_core.report import generate_report

    outputs = ["combined_report.html", "report.json", "junit.xml", "history.json"]
    with (
        synchronised(run.parameters.output_dir),
        recorded(run.run_dir, STAGE, {"target": run.target_identity}, outputs),
    ):
        record_history(run, conclusion)
        generate_report(run.run_dir, conclusion=conclusion)
    return str(RunDir.at(run.location).report_html)
