"""`python -m deployments.bootstrap`: bring a Prefect server to the state that the flows expect. Idempotent.

Pools and queues, deployments, automations, and the webhook when one is given. What exists is updated, what somebody
else made is left alone. Run it again after every upgrade: the forms in the UI and the API's checks come from here.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.objects import ConcurrencyLimitStrategy, ConcurrencyOptions
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.schedules import Cron
from prefect.utilities.callables import parameter_schema
from prefect.workers.process import ProcessWorker

from accuracy_core.errors import AssayError, ConfigurationError, InfrastructureError
from accuracy_core.outcome import exit_code
from deployments.automations import ensure_automations
from deployments.declared import Declared, declared
from flows.nightly_regression import CPU_POOL
from flows.placement import DEFAULT_DEVICE_POOL

CPU_LIMIT = 4
DEVICE_LIMIT = 1
#: queue -> priority; 1 goes first
QUEUES = {"adhoc": 1, "nightly": 5}


def bootstrap(device_pools: Sequence[str] = (DEFAULT_DEVICE_POOL,), *, webhook: str | None = None) -> None:
    """Everything. Raises ConfigurationError for a wrong auth string or pool, InfrastructureError without a server."""
    with connected() as client:
        ensure_pools(client, device_pools)
        ensure_deployments(client, device_pools)
        ensure_automations(client, webhook)


@contextlib.contextmanager
def connected() -> Iterator[SyncPrefectClient]:
    """A client, after one question that shows whether server and auth string are right. Errors as `bootstrap`."""
    with get_client(sync_client=True) as client:
        try:
            client.read_work_pools(limit=1)
        except PrefectHTTPStatusError as error:
            code = error.response.status_code
            if code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
                raise ConfigurationError(
                    f"{client.api_url} refuses us: {code}",
                    fix="set PREFECT_API_AUTH_STRING to the server's auth string",
                ) from error
            raise InfrastructureError(f"{client.api_url} answers {code}") from error
        except httpx.HTTPError as error:
            raise InfrastructureError(
                f"no Prefect API at {client.api_url}: {type(error).__name__}",
                fix="start the server (`assay up`, or `prefect server start`) and set PREFECT_API_URL",
            ) from error
        yield client


def ensure_pools(client: SyncPrefectClient, device_pools: Sequence[str]) -> None:
    """The cpu pool and one pool per device host, each with a queue for ad hoc runs and one for the nightly."""
    if CPU_POOL in device_pools:
        raise ConfigurationError(f"{CPU_POOL} cannot be a device pool", fix="give the device pool another name")
    for name, limit in {CPU_POOL: CPU_LIMIT, **dict.fromkeys(device_pools, DEVICE_LIMIT)}.items():
        _ensure_pool(client, name, limit)
        for queue, priority in QUEUES.items():
            _ensure_queue(client, name, queue, priority)


def ensure_deployments(client: SyncPrefectClient, device_pools: Sequence[str]) -> None:
    """Deployments as declared. Parameters that their flow does not have are refused by the API, not by the run."""
    for one in declared(device_pools):
        flow = one.flow()
        client.create_deployment(
            flow_id=client.create_flow(flow),
            name=one.name,
            entrypoint=one.entrypoint,
            description=one.description,
            tags=list(one.tags),
            parameters=one.parameters,
            parameter_openapi_schema=strict_schema(flow),
            enforce_parameter_schema=True,
            work_pool_name=one.pool,
            work_queue_name=one.queue,
            job_variables=one.job_variables,
            schedules=_schedules(one),
            concurrency_limit=one.concurrency.get("limit"),
            concurrency_options=_options(one),
        )


def strict_schema(flow: Any) -> dict[str, Any]:
    """Schema of the flow's parameters that allows no others."""
    return {**parameter_schema(flow.fn).model_dump_for_openapi(), "additionalProperties": False}


def _ensure_pool(client: SyncPrefectClient, name: str, limit: int) -> None:
    try:
        pool = client.read_work_pool(name)
    except ObjectNotFound:
        template = ProcessWorker.get_default_base_job_template()
        client.create_work_pool(
            WorkPoolCreate(name=name, type="process", base_job_template=template, concurrency_limit=limit)
        )
        return
    if pool.type != "process":
        raise ConfigurationError(
            f"work pool {name} exists and is of type {pool.type}", fix="delete it, or choose another name"
        )
    if name != CPU_POOL and pool.concurrency_limit != limit:
        client.update_work_pool(name, WorkPoolUpdate(concurrency_limit=limit))


def _ensure_queue(client: SyncPrefectClient, pool: str, name: str, priority: int) -> None:
    try:
        queue = client.read_work_queue_by_name(name, work_pool_name=pool)
    except ObjectNotFound:
        client.create_work_queue(name=name, priority=priority, work_pool_name=pool)
        return
    if queue.priority != priority:
        client.update_work_queue(queue.id, priority=priority)


def _schedules(one: Declared) -> list[DeploymentScheduleCreate]:
    return [
        DeploymentScheduleCreate.from_schedule(
            Cron(entry["cron"], timezone=entry["timezone"], slug=entry["slug"], active=entry["active"])
        )
        for entry in one.schedules
    ]


def _options(one: Declared) -> ConcurrencyOptions | None:
    if not one.concurrency:
        return None
    return ConcurrencyOptions(collision_strategy=ConcurrencyLimitStrategy(one.concurrency["collision_strategy"]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deployments.bootstrap", description=__doc__.splitlines()[0])
    parser.add_argument("--device-pool", action="append", help=f"name; may be repeated; default {DEFAULT_DEVICE_POOL}")
    parser.add_argument("--webhook", help="URL that is called when a run fails or crashes")
    options = parser.parse_args(arguments)
    try:
        bootstrap(options.device_pool or [DEFAULT_DEVICE_POOL], webhook=options.webhook)
    except AssayError as error:
        print(error, file=sys.stderr)
        return exit_code(error.outcome, None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
