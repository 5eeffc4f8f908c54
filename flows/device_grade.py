"""The device's part of a grading: nobody else uses its cores while a submission is timed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run

from accuracy_core.engines.cores import acquire_cores
from accuracy_core.engines.devices import platform_cores
from accuracy_core.errors import AssayError, ConfigurationError
from accuracy_core.grading.order import GradeOrder
from accuracy_core.grading.result import write_result
from accuracy_core.pipeline.handover import leave_failure
from accuracy_core.prompts.conclusion import conclude_error
from accuracy_core.schemas import Platform, RunDir
from flows.current_run import is_alone
from flows.naming import grade_name
from flows.stage_flow import log_failure
from flows.states import state_of


@flow(name="device-grade", flow_run_name=grade_name, retries=0, persist_result=False)
def device_grade(order: GradeOrder) -> State[Any]:
    """Grade a submission with all cores of the device leased, and write `grade.json`.

    Args:
        order: what to grade, and the run directory (`output_dir`) that the result goes to.
    """
    from accuracy_core.grading import grade, grade_task

    run_dir = None
    try:
        if order.output_dir is None:
            raise ConfigurationError("no output_dir: the result has nowhere to go", fix="run grade-kernel instead")
        run_dir = RunDir.at(order.output_dir).create()
        platform = Platform(order.device)
        cores = platform_cores(platform)
        with acquire_cores(platform, cores=cores, timeout_s=order.device_timeout_s, note=f"grading {order.submission}"):
            result = grade(
                Path(order.submission).expanduser(),
                grade_task(order.task, order.scale),
                device=order.device,
                baselines=order.baselines,
                seed=order.seed,
            )
        write_result(run_dir, result)
    except AssayError as error:
        log_failure(error)
        if run_dir is not None and not is_alone():
            leave_failure(run_dir, flow_run.id or "", error)
        return state_of(conclude_error(error))
    return state_of(result.conclusion())
