"""The main flow: preflight, evaluate, stop the server, task analysis, references, prompt analysis, report.

`python -m flows.accuracy_debugger` runs it on the embedded model with no Prefect server at hand.
"""

from __future__ import annotations

import sys
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State, StateType
from prefect.futures import PrefectFuture

from accuracy_core.errors import AssayError, InfrastructureError, NotMeasuredError
from accuracy_core.pipeline.claim import claimed
from accuracy_core.pipeline.earlier import earlier_analysis, earlier_modules, earlier_task_status
from accuracy_core.pipeline.handover import take_failure
from accuracy_core.pipeline.mirror import synchronised
from accuracy_core.pipeline.preflight_findings import earlier_preflight
from accuracy_core.pipeline.run import Run, record, resolve_run, with_output_dir
from accuracy_core.prompts.conclusion import Conclusion, conclude
from accuracy_core.schemas import (
    ModuleValidationResult,
    PromptAnalysisStatus,
    RunDir,
    RunParameters,
    StageRecord,
    TaskStatus,
)
from flows.current_run import under_worker
from flows.device_eval import device_eval
from flows.device_modules import device_modules
from flows.device_prompt import device_prompt
from flows.dispatch import StageEnd, Target, run_stage, wait_for_api
from flows.hooks import cancel_children
from flows.local_api import local_api
from flows.naming import run_name, tag_run, tags_of
from flows.placement import Placement
from flows.run_root import with_run_directory
from flows.signals import hang_up_interrupts
from flows.stage_flow import log_failure
from flows.states import state_of
from tasks.evaluation import obtain_evaluation
from tasks.module_validation import obtain_modules
from tasks.opaque import opaque
from tasks.preflight import require_right_requests, require_right_setup
from tasks.prompt_analysis import goldens_task, obtain_analysis
from tasks.report import report_task
from tasks.task_analysis import obtain_task_status

#: flows whose results say themselves what could not be measured, or was refused: flow -> its stage
_SPEAKING = {device_prompt.name: "prompt_analysis", device_modules.name: "module_validation"}


@flow(
    name="accuracy-debugger",
    flow_run_name=run_name,
    retries=0,
    persist_result=False,
    on_crashed=[cancel_children],
    on_failure=[cancel_children],
    on_cancellation=[cancel_children],
)
def accuracy_debugger(
    parameters: RunParameters = RunParameters(),  # noqa: B008 - immutable
    placement: Placement = Placement(),  # noqa: B008 - immutable
) -> State[Any]:
    """Evaluate a model on an engine and find out whether the numerics are right.

    Args:
        parameters: model, engine, tasks, thresholds and what to analyse.
        placement: which device pool does the work, and how urgent it is.
    """
    return debugged(parameters, placement)


def debugged(parameters: RunParameters, placement: Placement) -> State[Any]:
    """The stages of `parameters`, one after the other, inside the current flow run; its final state."""
    try:
        run = resolve_run(with_run_directory(parameters), engine_here=not under_worker())
        with claimed(run.run_dir):
            record(run)
            tag_run(tags_of(run.parameters))
            conclusion = _debug(run, placement)
    except AssayError as error:
        log_failure(error)
        conclusion = conclude(None, None, error=error)
    if under_worker():
        wait_for_api()
    return state_of(conclusion)


def _debug(run: Run, placement: Placement) -> Conclusion:
    stages = run.parameters.stages
    task_status: TaskStatus | None = None
    analysis: PromptAnalysisStatus | None = None
    modules: ModuleValidationResult | None = None
    try:
        require_right_setup(run)
        if "task_analysis" not in stages:
            task_status = earlier_task_status(run)
        if "prompt_analysis" not in stages:
            analysis = earlier_analysis(run)
        if "module_validation" not in stages:
            modules = earlier_modules(run)
        evaluate = "evaluate" in stages and run.parameters.evaluation.results is None
        ahead = _references_ahead(run) if evaluate else None
        if evaluate and not obtain_evaluation(run, None):
            _on_device(run, device_eval, placement)
        if "task_analysis" in stages:
            task_status = obtain_task_status(run)
            require_right_requests(run)
        if "prompt_analysis" in stages:
            analysis = obtain_analysis(run, None)
            if analysis is None:
                if ahead is not None:
                    ahead.result()
                else:
                    goldens_task(opaque(run))
                _on_device(run, device_prompt, placement)
                analysis = earlier_analysis(run)
        if "module_validation" in stages:
            modules = obtain_modules(run, None)
            if modules is None:
                _on_device(run, device_modules, placement)
                modules = earlier_modules(run)
        skipped = _left_out(run, task_status, analysis)
        conclusion = conclude(task_status, analysis, skipped=skipped, preflight=earlier_preflight(run), modules=modules)
    except AssayError as error:
        log_failure(error)
        conclusion = conclude(task_status, analysis, error=error, modules=modules)
    if "report" in stages:
        try:
            report_task(opaque(run), opaque(conclusion))
        except Exception as error:  # a page that cannot be written must not cost what was found
            return conclude(task_status, analysis, error=error, modules=modules)
    return conclusion


def _references_ahead(run: Run) -> PrefectFuture[Any] | None:
    """References of prompts that are known before the evaluation, computed while the device is busy with it.

    Only under a worker: elsewhere the engine is in this process's way, and it in the engine's.
    """
    prompts = run.parameters.prompt_analysis
    known = prompts.prompts is not None or prompts.curated
    if not (under_worker() and known and "prompt_analysis" in run.parameters.stages):
        return None
    if obtain_analysis(run, None) is not None:
        return None
    return goldens_task.submit(opaque(run))


def _on_device(run: Run, stage: Any, placement: Placement) -> None:
    """Run a stage that needs the device. Raises what it raised; a verdict is no error."""
    target = Target(
        deployment=f"{stage.name}/{placement.device_pool}",
        pool=placement.device_pool,
        queue=placement.queue,
        tags=tags_of(run.parameters),
    )
    end = run_stage(stage, target, parameters=run.parameters)
    failure = take_failure(RunDir.at(run.location), end.run_id)
    if failure is not None:
        raise failure
    if end.kind is StateType.COMPLETED or end.name == "AccuracyFailed":
        return
    speaks = _SPEAKING.get(stage.name)
    if end.name in ("NotMeasured", "ConfigurationFailed") and speaks is not None and _is_done(run, speaks):
        return
    if end.name == "NotMeasured":
        raise NotMeasuredError(end.message)
    raise _broken(stage.name, end)


def _is_done(run: Run, stage: str) -> bool:
    """Whether this run's `stage` has its results: its record of an earlier run was taken away when this one began."""
    with synchronised(run.parameters.output_dir):
        path = run.run_dir.stages / f"{stage}.json"
    return path.exists() and run.run_dir.read(path, StageRecord).status in ("done", "cached")


def _broken(stage: str, end: StageEnd) -> InfrastructureError:
    """The stage's run ended without saying why: it was killed, or cancelled, or hit what nobody foresaw."""
    if end.kind is StateType.CANCELLED:
        return InfrastructureError(f"{stage} was cancelled", fix="start the run again")
    return InfrastructureError(
        f"{stage} ended as {end.name}: {end.message or 'no message'}", fix=f"see the log of flow run {end.run_id}"
    )


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
    with hang_up_interrupts(), local_api():
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
