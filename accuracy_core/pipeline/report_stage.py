"""Stage 5: the report."""

from __future__ import annotations

from accuracy_core.pipeline.run import Run
from accuracy_core.pipeline.stages import recorded
from accuracy_core.prompts.conclusion import Conclusion

STAGE = "report"


def build_report(run: Run, conclusion: Conclusion) -> str:
    """Write `combined_report.html` and `report.json`. Returns the page's path."""
    from accuracy_core.report import generate_report

    with recorded(run.run_dir, STAGE, {"target": run.target_identity}, ["combined_report.html", "report.json"]):
        return generate_report(run.run_dir, conclusion=conclusion)
