"""The flow that grades a decode-step implementation: gates, score, report."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.artifacts import create_link_artifact
from prefect.client.schemas.objects import State, StateType
from prefect.runtime import flow_run

from accuracy_core.errors import AssayError, ConfigurationError, InfrastructureError
from accuracy_core.grading.order import GradeOrder
from accuracy_core.grading.result import FILE, GradeResult
from accuracy_core.pipeline.handover import take_failure
from accuracy_core.prompts.conclusion import Conclusion, conclude_error
from accuracy_core.report import generate_report
from accuracy_core.schemas import RunDir
from flows.current_run import under_worker
from flows.device_grade import device_grade
from flows.dispatch import Target, run_stage, wait_for_api
from flows.hooks import cancel_children
from flows.local_api import local_api
from flows.naming import grade_name
from flows.placement import Placement
from flows.run_root import runs_root
from flows.signals import hang_up_interrupts
from flows.stage_flow import log_failure
from flows.states import state_of
from tasks.showing import showing


@flow(
    name="grade-kernel",
    flow_run_name=grade_name,
    retries=0,
    persist_result=False,
    on_crashed=[cancel_children],
    on_failure=[cancel_children],
    on_cancellation=[cancel_children],
)
def grade_kernel(order: GradeOrder, placement: Placement = Placement()) -> State[Any]:  # noqa: B008 - immutable
    """Grade a submission: correct, few launches, one dominant kernel; then tokens per second. Else the score is 0.

    Args:
        order: the submission, a file on the device host, and the task.
        placement: which device pool does the work, and how urgent it is.
    """
    try:
        conclusion = _graded(with_output(order), placement)
    except AssayError as error:
        log_failure(error)
        conclusion = conclude_error(error)
    if under_worker():
        wait_for_api()
    return state_of(conclusion)


def grade_here(order: GradeOrder) -> tuple[Conclusion, RunDir]:
    """Run the flow in this process, against the configured Prefect API or a temporary one.

    Raises ConfigurationError for an unknown task or a submission that is no file before anything is started.
    """
    order = with_output(order)
    _check_task(order)
    if not Path(order.submission).expanduser().is_file():
        raise ConfigurationError(f"{order.submission} is no file", fix="give the Python file that defines build()")
    with hang_up_interrupts(), local_api():
        state: State[Any] = grade_kernel(order, return_state=True)
    conclusion = state.result(raise_on_failure=False)
    if isinstance(conclusion, BaseException):
        raise conclusion
    return Conclusion.model_validate(conclusion), RunDir.at(order.output_dir or "")


def with_output(order: GradeOrder) -> GradeOrder:
    """`order` with an absolute run directory: the device's flow has another working directory."""
    if order.output_dir is not None and (not under_worker() or Path(order.output_dir).is_absolute()):
        return order.model_copy(update={"output_dir": str(Path(order.output_dir).expanduser().absolute())})
    name = order.output_dir or f"grade-{order.task}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    if under_worker() and order.output_dir is None:
        name += f"-{str(flow_run.id)[:8]}"
    return order.model_copy(update={"output_dir": str((Path(runs_root()) / name).absolute())})


def _check_task(order: GradeOrder) -> None:
    from accuracy_core.grading import grade_task

    grade_task(order.task, order.scale)


def _graded(order: GradeOrder, placement: Placement) -> Conclusion:
    _check_task(order)
    if "://" in (order.output_dir or ""):
        raise ConfigurationError(f"{order.output_dir} is no local path", fix="give a directory that both hosts see")
    run_dir = RunDir.at(order.output_dir or "").create()
    target = Target(
        deployment=f"{device_grade.name}/{placement.device_pool}",
        pool=placement.device_pool,
        queue=placement.queue,
        tags=[f"task:{order.task}", f"device:{order.device}"],
    )
    end = run_stage(device_grade, target, order=order)
    failure = take_failure(run_dir, end.run_id)
    if failure is not None:
        raise failure
    if end.kind is not StateType.COMPLETED and end.name not in ("AccuracyFailed", "ConfigurationFailed"):
        raise InfrastructureError(
            f"device-grade ended as {end.name}: {end.message or 'no message'}", fix=f"see flow run {end.run_id}"
        )
    conclusion = run_dir.read(run_dir.root / FILE, GradeResult).conclusion()
    page = generate_report(run_dir, conclusion=conclusion)
    with showing("the report"):
        create_link_artifact(f"file://{page}", key="report", link_text="combined_report.html")
    return conclusion
