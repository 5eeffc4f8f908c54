"""What happens when a run ends before its children do."""

from __future__ import annotations

from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterParentFlowRunId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.states import Cancelling

UNFINISHED = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.PAUSED]


def cancel_children(flow: Any, flow_run: FlowRun, state: Any) -> None:
    """Hook for `on_crashed`, `on_failure` and `on_cancellation` of a parent: cancel what it started and left behind.

    Prefect's server passes on a cancellation, late, and a crash or a failure not at all.
    """
    with get_client(sync_client=True) as client:
        children = client.read_flow_runs(
            flow_run_filter=FlowRunFilter(
                parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[flow_run.id]),
                state=FlowRunFilterState(type=FlowRunFilterStateType(any_=UNFINISHED)),
            )
        )
        for child in children:
            client.set_flow_run_state(child.id, Cancelling(message=f"its parent ended as {state.name}"))
