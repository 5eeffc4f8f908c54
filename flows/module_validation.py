"""Level 3 alone: accuracy-debugger, narrowed to preflight, module validation and report."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from accuracy_core.schemas import RunParameters
from flows.accuracy_debugger import debugged
from flows.hooks import cancel_children
from flows.levels import modules_alone
from flows.naming import run_name
from flows.placement import Placement


@flow(
    name="module-validation",
    flow_run_name=run_name,
    retries=0,
    persist_result=False,
    on_crashed=[cancel_children],
    on_failure=[cancel_children],
    on_cancellation=[cancel_children],
)
def module_validation(
    parameters: RunParameters = RunParameters(),  # noqa: B008 - immutable
    placement: Placement = Placement(),  # noqa: B008 - immutable
) -> State[Any]:
    """Compare single modules of a target with the reference's, on seeded inputs, prefill and decode.

    Args:
        parameters: as of accuracy-debugger; `module_validation` says which modules, `stages` says nothing here.
        placement: which device pool does the work, and how urgent it is.
    """
    return debugged(modules_alone(parameters), placement)
