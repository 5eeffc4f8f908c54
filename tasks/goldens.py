"""Goldens as Prefect tasks: one computation per key whoever asks, results that are references, shards for a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import CacheKeyFnPolicy
from prefect.transactions import IsolationLevel

from accuracy_core.goldens.location import cache_directory
from accuracy_core.goldens.mapping import ReferenceGoldens
from accuracy_core.goldens.order import GoldenOrder, GoldenRef
from tasks.goldens_lock import FlockLockManager
from tasks.retrying import infrastructure_only


def _lock_directory() -> Path:
    return cache_directory() / "prefect-locks"


def _cache_key(context: object, parameters: dict[str, Any]) -> str:
    """Key of the goldens themselves: two ways to ask for the same ones share a result."""
    order: GoldenOrder = parameters["order"]
    return f"goldens-{order.set_key()}"


#: SERIALIZABLE: a second run that asks for the same key waits for the first instead of computing, too
POLICY = CacheKeyFnPolicy(cache_key_fn=_cache_key).configure(
    isolation_level=IsolationLevel.SERIALIZABLE, lock_manager=FlockLockManager(_lock_directory)
)


@task(
    name="golden", cache_policy=POLICY, persist_result=True, result_serializer="json", retries=1,
    retry_condition_fn=infrastructure_only,
)  # fmt: skip
def golden_task(order: GoldenOrder) -> list[dict[str, Any]]:
    """Obtain the goldens of an order; one reference (GoldenRef as JSON) per prompt, never tensors."""
    return [reference.model_dump(mode="json") for reference in order.references()]


def obtain_references(order: GoldenOrder, *, shards: int = 1) -> list[GoldenRef]:
    """References of an order, inside a flow: called directly, or submitted to the flow's task runner in `shards`.

    Prefect's result is believed only while the goldens are held somewhere; otherwise they are computed again. Raises
    what the first failed shard raised.
    """
    orders = order.shards(shards)
    runs = [golden_task.with_options(refresh_cache=not part.is_held()) for part in orders]
    if len(orders) == 1:
        results = [runs[0](orders[0])]
    else:
        futures = [run.submit(part) for run, part in zip(runs, orders, strict=True)]
        results = [future.result() for future in futures]
    return [GoldenRef.model_validate(reference) for result in results for reference in result]


def obtain_goldens(order: GoldenOrder, *, shards: int = 1) -> ReferenceGoldens:
    """As `obtain_references`, then read: from this machine's cache or the shared store."""
    obtain_references(order, shards=shards)
    return order.obtain()
