"""What the flows of single stages have in common: a checked run in, a state out, and word to the parent on failure."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from prefect import get_run_logger
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run

from accuracy_core.errors import AssayError
from accuracy_core.pipeline.claim import claimed
from accuracy_core.pipeline.handover import leave_failure
from accuracy_core.pipeline.run import Run, record, resolve_run
from accuracy_core.prompts.conclusion import conclude_error
from accuracy_core.schemas import RunDir, RunParameters
from flows.current_run import is_alone, under_worker
from flows.naming import tag_run, tags_of
from flows.run_root import with_run_directory
from flows.states import state_of
from tasks.preflight import require_right_setup


def run_as_stage(parameters: RunParameters, stages: list[Any], body: Callable[[Run], State[Any]]) -> State[Any]:
    """Check `parameters`, narrowed to `stages`, on this host; run `body`; turn errors into states.

    The parent of a stage has claimed the run directory and written the parameters down; a stage that was triggered
    alone does so itself, and makes its own preflight.
    """
    if is_alone() and "preflight" in parameters.stages:
        stages = ["preflight", *stages]
    refresh = [stage for stage in parameters.refresh if stage in stages]
    parameters = with_run_directory(parameters.model_copy(update={"stages": stages, "refresh": refresh}))
    try:
        run = resolve_run(parameters)
        if is_alone() or not under_worker():  # a parent on a worker gives them with its request
            tag_run(tags_of(parameters))
        with contextlib.ExitStack() as stack:
            if is_alone():
                stack.enter_context(claimed(run.run_dir))
                record(run)
                require_right_setup(run)
            return body(run)
    except AssayError as error:
        log_failure(error)
        if not is_alone():
            leave_failure(RunDir.at(parameters.output_dir or ""), flow_run.id or "", error)
        return state_of(conclude_error(error))


def log_failure(error: AssayError) -> None:
    """The error, with the end of the engine's log, into the run's own log: the place where a user looks first."""
    with contextlib.suppress(Exception):  # saying it must not hide it
        get_run_logger().error(str(error))
