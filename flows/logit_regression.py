"""Level 2 alone: accuracy-debugger, narrowed to preflight, prompt analysis of the curated prompts, and report."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from accuracy_core.schemas import RunParameters
from flows.accuracy_debugger import debugged
from flows.hooks import cancel_children
from flows.levels import logits_alone
from flows.naming import run_name
from flows.placement import Placement


@flow(
    name="logit-regression",
    flow_run_name=run_name,
    retries=0,
    persist_result=False,
    on_crashed=[cancel_children],
    on_failure=[cancel_children],
    on_cancellation=[cancel_children],
)
def logit_regression(
    parameters: RunParameters = RunParameters(),  # noqa: B008 - immutable
    placement: Placement = Placement(),  # noqa: B008 - immutable
) -> State[Any]:
    """Hold a target's logits on fixed prompts against cached references, and against itself served in other ways.

    Args:
        parameters: as of accuracy-debugger; prompts are the given ones, else the curated ones, `stages` says nothing
            here.
        placement: which device pool does the work, and how urgent it is.
    """
    return debugged(logits_alone(parameters), placement)
