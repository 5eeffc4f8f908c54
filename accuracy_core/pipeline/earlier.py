"""What earlier runs left in a run directory, for a run that repeats only some stages."""

from __future__ import annotations

from accuracy_core.pipeline.mirror import synchronised
from accuracy_core.pipeline.run import Run
from accuracy_core.schemas import ModuleValidationResult, PromptAnalysisStatus, TaskStatus


def earlier_task_status(run: Run) -> TaskStatus | None:
    """Task analysis that lies in the run directory; None if there is none."""
    with synchronised(run.parameters.output_dir):
        path = run.run_dir.task_analysis / "task_status.json"
    return run.run_dir.read(path, TaskStatus) if path.exists() else None


def earlier_analysis(run: Run) -> PromptAnalysisStatus | None:
    """Prompt analysis that lies in the run directory; None if there is none."""
    with synchronised(run.parameters.output_dir):
        path = run.run_dir.prompt_analysis_json
    return run.run_dir.read(path, PromptAnalysisStatus) if path.exists() else None


def earlier_modules(run: Run) -> ModuleValidationResult | None:
    """Module validation that lies in the run directory; None if there is none."""
    with synchronised(run.parameters.output_dir):
        path = run.run_dir.module_validation_json
    return run.run_dir.read(path, ModuleValidationResult) if path.exists() else None
