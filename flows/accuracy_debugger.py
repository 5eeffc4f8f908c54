"""The main flow: evaluate, stop the server, task analysis, references, prompt analysis, report.

`python -m flows.accuracy_debugger` runs it on the embedded model with no Prefect server at hand.
"""

from __future__ import annotations

import sys
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from accuracy_core.errors import AssayError
from accuracy_core.pipeline.claim import claimed
from accuracy_core.pipeline.earlier import earlier_analysis, earlier_task_status
from accuracy_core.pipeline.evaluation import local_path
from accuracy_core.pipeline.run import Run, record, resolve_run, with_output_dir
from accuracy_core.pipeline.session import EvaluationSession
from accuracy_core.prompts.conclusion import Conclusion, conclude
from accuracy_core.schemas import PromptAnalysisStatus, RunDir, RunParameters, TaskStatus
from flows.local_api import local_api
from flows.states import state_of
from tasks.evaluation import evaluate_task, stop_server_task
from tasks.opaque import opaque
from tasks.prompt_analysis import goldens_task, prompt_analysis_task
from tasks.report import report_task
from tasks.task_analysis import task_analysis_task


def run_name() -> str:
    """`<model>-<platform>-<tasks>` of the flow run."""
    from prefect.runtime import flow_run

    given: Any = flow_run.parameters.get("parameters")
    parameters = given if isinstance(given, RunParameters) else RunParameters.model_validate(given or {})
    engine = parameters.engine
    model = engine.model.rstrip("/").rsplit("/", 1)[-1]
    fault = f"-{engine.fault.name}" if engine.fault else ""
    return f"{model}-{engine.platform.value}{fault}-{'+'.join(parameters.evaluation.tasks)}"


@flow(name="accuracy-debugger", flow_run_name=run_name, retries=0, persist_result=False)
def accuracy_debugger(parameters: RunParameters = RunParameters()) -> State[Any]:  # noqa: B008 - immutable
    """Evaluate a model on an engine and find out whether the numerics are right.

    Args:
        parameters: model, engine, tasks, thresholds and what to analyse.
    """
    try:
        run = resolve_run(parameters)
        with claimed(run.run_dir):
            record(run)
            return state_of(_debug(run))
    except AssayError as error:
        return state_of(conclude(None, None, error=error))


def _debug(run: Run) -> Conclusion:
    stages = run.parameters.stages
    task_status: TaskStatus | None = None
    analysis: PromptAnalysisStatus | None = None
    try:
        if "task_analysis" not in stages:
            task_status = earlier_task_status(run)
        if "prompt_analysis" not in stages:
            analysis = earlier_analysis(run)
        if "evaluate" in stages and run.parameters.evaluation.results is None:
            with EvaluationSession(run, local_path(run.run_dir.server_log)) as session:
                evaluate_task(opaque(run), opaque(session))
                stop_server_task(opaque(session))
        if "task_analysis" in stages:
            task_status = task_analysis_task(opaque(run))
        if "prompt_analysis" in stages:
            prepared = goldens_task(opaque(run))
            analysis = prompt_analysis_task(opaque(run), opaque(prepared))
        conclusion = conclude(task_status, analysis, skipped=_left_out(run, task_status, analysis))
    except AssayError as error:
        conclusion = conclude(task_status, analysis, error=error)
    if "report" in stages:
        try:
            report_task(opaque(run), opaque(conclusion))
        except Exception as error:  # a page that cannot be written must not cost what was found
            return conclude(task_status, analysis, error=error)
    return conclusion


def _left_out(run: Run, task: TaskStatus | None, analysis: PromptAnalysisStatus | None) -> list[str]:
    """Stages that this run left out and whose results no earlier run left in the directory."""
    there = {"evaluate": task, "task_analysis": task, "prompt_analysis": analysis}
    return [name for name, result in there.items() if name not in run.parameters.stages and result is None]


def run_here(parameters: RunParameters) -> tuple[Conclusion, str | None]:
    """Run the flow in this process, against the configured Prefect API or a temporary one.

    Returns the conclusion, and the report's path or None if there is no report. An error that nobody foresaw is raised
    as it is.
    """
    parameters = with_output_dir(parameters)
    with local_api():
        state: State[Any] = accuracy_debugger(parameters, return_state=True)
    conclusion = state.result(raise_on_failure=False)
    if isinstance(conclusion, BaseException):
        raise conclusion
    page = RunDir.at(parameters.output_dir or "").report_html
    written = "report" in parameters.stages and page.exists()
    return Conclusion.model_validate(conclusion), str(page) if written else None


def main() -> int:
    """The embedded default, from first to last."""
    conclusion, page = run_here(RunParameters())
    print(f"{conclusion.headline}\nreport: {page}")
    return conclusion.exit_code


if __name__ == "__main__":
    sys.exit(main())
