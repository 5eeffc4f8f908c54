"""The module validation: the engine's modules on seeded inputs, in one flow of the device pool."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from accuracy_core.pipeline.run import Run
from accuracy_core.prompts.conclusion import conclude
from accuracy_core.schemas import RunParameters
from flows.naming import run_name
from flows.stage_flow import run_as_stage
from flows.states import state_of
from tasks.module_validation import module_validation_task, obtain_modules
from tasks.opaque import opaque


@flow(name="device-modules", flow_run_name=run_name, retries=0, persist_result=False)
def device_modules(parameters: RunParameters = RunParameters()) -> State[Any]:  # noqa: B008 - immutable
    """Feed single modules of the engine and judge what they make of it against the reference's.

    Args:
        parameters: as of accuracy-debugger; only the module validation is run.
    """
    return run_as_stage(parameters, ["module_validation"], _validate)


def _validate(run: Run) -> State[Any]:
    result = obtain_modules(run, lambda: module_validation_task(opaque(run)))
    return state_of(conclude(None, None, modules=result))
