"""The flow that measures tolerances before they are used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.artifacts import create_link_artifact
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed

from accuracy_core.calibration import CalibrationOrder
from accuracy_core.errors import AssayError, ConfigurationError
from accuracy_core.pipeline.calibration import prepare, write
from accuracy_core.prompts.conclusion import Conclusion, conclude_error
from accuracy_core.schemas.base import Part
from flows.current_run import under_worker
from flows.local_api import local_api
from flows.run_root import DEFAULT_RUNS_DIR, RUNS_DIR
from flows.signals import hang_up_interrupts
from flows.stage_flow import log_failure
from flows.states import state_of
from tasks.calibration import obtain_calibration
from tasks.showing import showing

FILE = "calibration.json"


class Calibrated(Part):
    """Where a calibration lies."""

    file: str
    page: str


def calibration_name() -> str:
    """`<model>-<dtype>` of the current flow run."""
    given: Any = flow_run.parameters.get("order")
    order = given if isinstance(given, CalibrationOrder) else CalibrationOrder.model_validate(given or {})
    return f"{order.label}-{order.dtype}"


@flow(name="calibrate", flow_run_name=calibration_name, retries=0, persist_result=False)
def calibrate(order: CalibrationOrder = CalibrationOrder()) -> State[Any]:  # noqa: B008 - immutable
    """Measure what a model's low-precision runs differ by, and write the tolerances that follow, with a report.

    Args:
        order: the model, the dtype, how many seeds, and where to write.
    """
    try:
        output = _output(order)
        calibration = obtain_calibration(prepare(order))
        page = write(calibration, output)
    except AssayError as error:
        log_failure(error)
        return state_of(conclude_error(error))
    with showing("the report"):
        create_link_artifact(f"file://{page.absolute()}", key="calibration", link_text=page.name)
    told = f"tolerance {calibration.relative_tolerance:.2g}, {len(calibration.warnings)} warnings: {output}"
    return Completed(message=told, data=Calibrated(file=str(output), page=str(page)))


def calibrate_here(order: CalibrationOrder) -> Calibrated | Conclusion:
    """Run the flow in this process, against the configured Prefect API or a temporary one.

    A calibration that was refused or failed on the way gives the conclusion that says why; an order that cannot be
    carried out raises ConfigurationError before anything is started.
    """
    _output(order)
    prepare(order)
    with hang_up_interrupts(), local_api():
        state: State[Any] = calibrate(order, return_state=True)
    found = state.result(raise_on_failure=False)
    if isinstance(found, BaseException):
        raise found
    assert isinstance(found, Calibrated | Conclusion)
    return found


def _output(order: CalibrationOrder) -> Path:
    """Under a worker, whose working directory is a temporary one, a relative path is below `$ASSAY_RUNS_DIR`."""
    if order.output is not None and "://" in order.output:
        raise ConfigurationError(f"{order.output} is no local path", fix="write it locally, then copy it")
    given = Path(order.output or FILE).expanduser()
    if not under_worker() or given.is_absolute():
        return given
    name = given if order.output else Path(f"calibration-{order.label}-{str(flow_run.id)[:8]}", FILE)
    return Path(os.environ.get(RUNS_DIR) or os.path.expanduser(DEFAULT_RUNS_DIR)) / name
