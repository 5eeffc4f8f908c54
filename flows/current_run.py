"""What the current flow run is. Prefect asks the API at every look, and answers do not change: one look is enough."""

from __future__ import annotations

import functools

from prefect.runtime import deployment, flow_run


def under_worker() -> bool:
    """True when a worker started this flow run: then other pools can be used."""
    run_id = flow_run.id
    return run_id is not None and _deployment_of(run_id) is not None


def is_alone() -> bool:
    """True when the current flow run has no parent."""
    run_id = flow_run.id
    return run_id is None or _parent_of(run_id) is None


@functools.lru_cache(maxsize=256)
def _deployment_of(run_id: str) -> str | None:
    return deployment.id


@functools.lru_cache(maxsize=256)
def _parent_of(run_id: str) -> str | None:
    return flow_run.parent_flow_run_id
