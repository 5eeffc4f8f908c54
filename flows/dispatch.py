"""Run a stage on the pool where it belongs, or in this process when no worker started us."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID, uuid4

import httpx
from prefect import Flow, get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State, StateType, WorkPoolStatus
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from pydantic import BaseModel

from accuracy_core.errors import AssayError, ConfigurationError, InfrastructureError
from flows.current_run import under_worker

POLL_S = 2.0
#: how long a run may wait for a worker before it says so, and how often it repeats it
WAITING_S = 60.0
REMIND_S = 600.0
#: how long the API may be away before a run that waits for a child gives up
API_PATIENCE_S = 900.0
#: how often a run is submitted that never begins
SUBMISSIONS = 3
_NOT_STARTED = (StateType.SCHEDULED, StateType.PENDING)


@dataclass(frozen=True)
class StageEnd:
    """How a stage's flow run ended. `began` False: no process of it ever ran."""

    name: str
    kind: StateType
    message: str
    run_id: str
    began: bool = True

    @classmethod
    def of(cls, state: State[Any], run_id: object, *, began: bool = True) -> StageEnd:
        return cls(state.name or "", state.type, state.message or "", str(run_id), began)


@dataclass
class Target:
    """A deployment, `<flow>/<deployment>`, and its pool; `queue` None is the deployment's own."""

    deployment: str
    pool: str
    queue: str | None = None
    tags: Sequence[str] = field(default_factory=tuple)


def run_stage(stage: Flow[..., Any], target: Target, **parameters: Any) -> StageEnd:
    """Run `stage` with `parameters` to its end: as a subflow here, or as a run of `target` when we are on a worker.

    What an in-process stage raised unforeseen is raised again. A run that its worker could not start (a busy server
    answers 503) is submitted again, a few times. Raises ConfigurationError when there is no such
    deployment or it refuses the parameters, InfrastructureError when the API stays away.
    """
    if not under_worker():
        state = cast(State[Any], stage(**parameters, return_state=True))
        result = state.result(raise_on_failure=False) if state.data is not None else None
        if isinstance(result, BaseException):
            raise result
        return StageEnd.of(state, state.state_details.flow_run_id)
    for _ in range(SUBMISSIONS):
        end = wait([submit(target, **parameters)], target)
        if end.began or end.kind is not StateType.CRASHED:
            break
    return end


def submit(target: Target, *, name: str | None = None, **parameters: Any) -> UUID:
    """Create a run of `target` as a child of the current run. Errors as `run_stage`."""
    plain = {key: value.model_dump(mode="json") if isinstance(value, BaseModel) else value
             for key, value in parameters.items()}  # fmt: skip
    key = str(uuid4())  # a request whose answer was lost is not carried out twice
    deadline = time.monotonic() + API_PATIENCE_S
    while True:
        try:
            child = run_deployment(
                target.deployment,
                parameters=plain,
                timeout=0,
                flow_run_name=name,
                tags=list(target.tags),
                work_queue_name=target.queue,
                idempotency_key=key,
            )
            return cast(FlowRun, child).id  # a coroutine only in an async caller
        except ObjectNotFound as error:
            raise ConfigurationError(
                f"the server has no deployment {target.deployment}, or its pool has no queue {target.queue}",
                fix=f"run `python -m deployments.bootstrap --device-pool {target.pool}`",
            ) from error
        except (PrefectHTTPStatusError, httpx.HTTPError) as error:
            refused = _refusal(error, target)
            if refused is not None:
                raise refused from error
            if time.monotonic() >= deadline:
                raise InfrastructureError(
                    f"the Prefect API has been away for {API_PATIENCE_S:.0f} s", fix="start the server again"
                ) from error
        time.sleep(POLL_S)


def _refusal(error: Exception, target: Target) -> AssayError | None:
    """What an answer says that will not change by asking again; None when the API is away or busy."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is None or status >= httpx.codes.INTERNAL_SERVER_ERROR:
        return None
    if status in (httpx.codes.CONFLICT, httpx.codes.UNPROCESSABLE_ENTITY):
        text = error.response.text[:2000]  # type: ignore[attr-defined]
        return ConfigurationError(
            f"{target.deployment} refuses the parameters: {text}",
            fix="the deployment was made by another version: run `python -m deployments.bootstrap` again",
        )
    return InfrastructureError(f"the Prefect API answers {status}")


def wait(run_ids: Sequence[UUID], target: Target) -> StageEnd:
    """Wait until one of the runs has ended. Says in the log of the current run what it waits for.

    An API that is away, restarting for example, is waited for as well: up to `API_PATIENCE_S`.
    """
    watch = _Watch(target)
    while True:
        runs = [_read(run_id) for run_id in run_ids]
        for run in runs:
            if run.state is not None and run.state.is_final():
                return StageEnd.of(run.state, run.id, began=run.start_time is not None)
        watch.look(runs)
        time.sleep(POLL_S)


def wait_for_api() -> None:
    """Return when the API answers, or after `API_PATIENCE_S`: a final state that nobody takes would be lost."""
    deadline = time.monotonic() + API_PATIENCE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError, RuntimeError), get_client(sync_client=True) as client:
            if client.api_healthcheck() is None:
                return
        time.sleep(POLL_S)


class _Watch:
    """Tells the user why no child starts."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._since = time.monotonic()
        self._next = self._since + WAITING_S

    def look(self, runs: Sequence[FlowRun]) -> None:
        now = time.monotonic()
        if any(run.state is not None and run.state.type not in _NOT_STARTED for run in runs):
            self._since, self._next = now, now + WAITING_S
            return
        if now < self._next:
            return
        self._next = now + REMIND_S
        with contextlib.suppress(Exception):
            get_run_logger().warning(self._why(now - self._since))

    def _why(self, waited_s: float) -> str:
        pool = self._target.pool
        with get_client(sync_client=True) as client:
            status = client.read_work_pool(pool).status
        if status is WorkPoolStatus.READY:
            return f"waiting for {pool} for {waited_s:.0f} s: it is busy with other runs"
        if status is WorkPoolStatus.PAUSED:
            return f"waiting for {pool} for {waited_s:.0f} s: the pool is paused; resume it to go on"
        return (
            f"waiting for {pool} for {waited_s:.0f} s: no worker polls it. Start one on the device host with "
            f"`prefect worker start --pool {pool} --type process`; this run goes on as soon as there is one"
        )


def _read(run_id: UUID) -> FlowRun:
    deadline = time.monotonic() + API_PATIENCE_S
    while True:
        try:
            with get_client(sync_client=True) as client:
                return client.read_flow_run(run_id)
        except (httpx.TransportError, PrefectHTTPStatusError) as error:
            status = getattr(getattr(error, "response", None), "status_code", 503)
            if status < httpx.codes.INTERNAL_SERVER_ERROR:
                raise InfrastructureError(f"the Prefect API answers {status} to a question for run {run_id}") from error
            if time.monotonic() >= deadline:
                raise InfrastructureError(
                    f"the Prefect API has been away for {API_PATIENCE_S:.0f} s", fix="start the server again"
                ) from error
        time.sleep(POLL_S)
