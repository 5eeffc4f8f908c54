"""Stage 2: scores against thresholds, and the prompts that deviate."""

from __future__ import annotations

from accuracy_core.pipeline.evaluation import results_location
from accuracy_core.pipeline.mirror import synchronised
from accuracy_core.pipeline.run import Run
from accuracy_core.pipeline.stages import recorded
from accuracy_core.schemas import TaskStatus

STAGE = "task_analysis"


def analyse_tasks(run: Run) -> TaskStatus:
    """Compare scores with thresholds and extract deviated prompts; files go to `task_analysis/`."""
    with synchronised(run.parameters.output_dir):
        return _analysed(run)


def _analysed(run: Run) -> TaskStatus:
    from accuracy_core.evals.analysis import run_task_analysis
    from accuracy_core.evals.analyzer import LmEvalAnalyzer

    evaluation = run.parameters.evaluation
    source = results_location(run)
    inputs = {"results": source, "thresholds": dict(run.parameters.thresholds), "target": run.target_identity}
    with recorded(run.run_dir, STAGE, inputs, ["task_analysis"]):
        result = run_task_analysis(
            LmEvalAnalyzer(),
            input_task_results=source,
            thresholds=dict(run.parameters.thresholds),
            output_dir=str(run.run_dir.root),
            reference_results=evaluation.reference_results,
        )
        return result.status
