"""`python -m deployments.reconcile POOL`: before a worker starts, end on the server what has already ended here.

A worker that was stopped, or whose host went down, leaves its runs Running for ever, and a pool with a limit of one
would never start another. Prefect stores the bare pid of a run, so a pool must have one host; while another host's
worker polls the pool, nothing is touched.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Sequence
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Crashed

from accuracy_core.errors import AssayError
from accuracy_core.outcome import exit_code
from deployments.bootstrap import connected
from flows.hooks import cancel_children

_GONE = "infra: its process is gone (worker or host restarted)"
_COUNTED = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]


def worker_name(pool: str) -> str:
    """Name of this host's worker of `pool`."""
    return f"{pool}-{socket.gethostname()}"


def reconcile(client: SyncPrefectClient, pool: str, worker: str) -> list[str]:
    """Crash every run that the server counts in `pool` and that has no process here. Returns what was done, in words.

    A run that was being cancelled becomes Cancelled. Children of a crashed run are cancelled. `worker` is the name of
    the worker that will be started.
    """
    try:
        others = [
            other.name
            for other in client.read_workers_for_work_pool(pool)
            if other.name != worker and str(getattr(other.status, "value", other.status)).upper() == "ONLINE"
        ]
    except ObjectNotFound:
        return []
    if others:
        return [f"{pool} left alone: it is polled by {', '.join(others)}"]
    done = []
    for run in _counted(client, pool):
        if is_running_here(run):
            continue
        cancelling = run.state is not None and run.state.type is StateType.CANCELLING
        state: State[Any] = Cancelled() if cancelling else Crashed(message=_GONE)
        client.set_flow_run_state(run.id, state, force=True)
        cancel_children(None, run, state)
        done.append(f"{run.name}: {state.name}")
    return done


def is_running_here(run: FlowRun) -> bool:
    """True when the run's process lives on this host. Its environment holds the run's id: pids are used again."""
    if not run.infrastructure_pid:
        return False
    try:
        with open(f"/proc/{run.infrastructure_pid.rpartition(':')[2]}/environ", "rb") as file:
            return str(run.id).encode() in file.read()
    except OSError:
        return False


def _counted(client: SyncPrefectClient, pool: str) -> list[FlowRun]:
    return client.read_flow_runs(
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_COUNTED))),
        work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[pool])),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deployments.reconcile", description=__doc__.splitlines()[0])
    parser.add_argument("pool", nargs="+")
    parser.add_argument("--worker", help="name of the worker that will be started; default POOL-HOSTNAME")
    options = parser.parse_args(arguments)
    try:
        with connected() as client:
            for pool in options.pool:
                for line in reconcile(client, pool, options.worker or worker_name(pool)):
                    print(line)
    except AssayError as error:
        print(error, file=sys.stderr)
        return exit_code(error.outcome, None)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
    sys.exit(main())
