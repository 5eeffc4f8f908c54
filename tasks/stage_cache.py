"""Stages as cached Prefect tasks: the stored result is a small reference to files, never the files.

A reference is believed only while every file it names is there with the same bytes; else the stage is computed again.
The cache may fail in any way without costing a run more than the computation that it would have saved.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import CacheKeyFnPolicy
from prefect.results import get_result_store

from accuracy_core.errors import AssayError, ConfigurationError
from accuracy_core.pipeline.mirror import synchronised
from accuracy_core.pipeline.run import Run
from accuracy_core.pipeline.stage_files import StageFiles, bring_back, describe
from accuracy_core.pipeline.stages import PARTS, record_cached
from accuracy_core.schemas import StageRecord
from tasks.opaque import opaque


@dataclass(frozen=True)
class StageJob:
    """One stage of one run: its key, how to compute it, and whether the result may be used by later runs."""

    run: Run
    stage: str
    key: str
    compute: Callable[[], object]
    complete: Callable[[Run], bool]

    @property
    def storage_key(self) -> str:
        return f"assay-{self.stage}-{self.key}"


def _storage_key(context: object, parameters: dict[str, Any]) -> str:
    job: StageJob = parameters["job"]
    return job.storage_key


@task(cache_policy=CacheKeyFnPolicy(cache_key_fn=_storage_key), persist_result=True, result_serializer="json",
      cache_result_in_memory=False)  # fmt: skip
def stage_task(job: StageJob) -> dict[str, Any]:
    """Compute a stage. Returns the reference to its files (StageFiles as JSON)."""
    job.compute()
    return _reference(job).model_dump(mode="json")


def obtain_stage(
    run: Run,
    stage: str,
    key: Callable[[Run], str],
    compute: Callable[[], object] | None,
    *,
    complete: Callable[[Run], bool] = lambda run: True,
) -> bool:
    """Have the results of `stage` in the run directory: from an earlier run with the same inputs, else by `compute`.

    With `compute` None only an earlier run's results will do; False says that there are none, or that this host cannot
    tell (it has no engine). `complete` looks at computed results and tells whether later runs may use them. Raises what
    `compute` raises.
    """
    with synchronised(run.parameters.output_dir):
        return _obtained(run, stage, key, compute, complete)


def _obtained(
    run: Run,
    stage: str,
    key: Callable[[Run], str],
    compute: Callable[[], object] | None,
    complete: Callable[[Run], bool],
) -> bool:
    try:
        job_key = key(run)
    except ConfigurationError:
        if compute is None:
            return False
        raise
    attempt = _Attempt(compute)
    job = StageJob(run, stage, job_key, attempt, complete)
    refresh = PARTS.get(stage, stage) in run.parameters.refresh
    found, usable = (None, False) if refresh else _found(job)
    if usable or compute is not None:
        _through_prefect(job, attempt, refresh=not usable)
    if usable and found is not None and not attempt.started:
        record_cached(run.run_dir, stage, job_key, found)
        return True
    return attempt.started


class _Attempt:
    """Calls `compute` and remembers how far it came: its errors are told from those of the cache."""

    def __init__(self, compute: Callable[[], object] | None) -> None:
        self._compute = compute
        self.started = self.finished = False
        self.error: BaseException | None = None

    def __call__(self) -> None:
        if self._compute is None:
            raise LookupError("the cached result went away")
        self.started = True
        try:
            self._compute()
        except BaseException as error:
            self.error = error
            raise
        self.finished = True


def _through_prefect(job: StageJob, attempt: _Attempt, *, refresh: bool) -> None:
    try:
        stage_task.with_options(name=f"{job.stage.replace('_', '-')}-stage", refresh_cache=refresh)(opaque(job))
    except Exception as error:
        if attempt.error is not None:
            raise attempt.error from None
        get_run_logger().warning("the cache of stages failed: %s: %s", type(error).__name__, error)
        if refresh and not attempt.finished:
            attempt()


def _found(job: StageJob) -> tuple[StageFiles | None, bool]:
    """The reference of an earlier run, and whether its files are in this run's directory now."""
    try:
        found = _stored(job)
        usable = found is not None and found.complete and bring_back(found, job.run.run_dir)
    except Exception as error:  # a damaged record, a storage that is away: then there is nothing to use
        get_run_logger().warning("no cached %s: %s: %s", job.stage, type(error).__name__, error)
        return None, False
    if found is not None and found.complete and not usable:
        get_run_logger().info("%s: files of an earlier run in %s are gone or changed", job.stage, found.root)
    return found, usable


def _stored(job: StageJob) -> StageFiles | None:
    """What Prefect stored under the job's key; None if there is nothing, or nothing that is plain JSON of this key.

    Read here first, as plain JSON: Prefect lets a record say how it is to be decoded, and one that says pickle would
    run code of whoever can write the storage.
    """
    current: Any = get_result_store()
    store = current.update_for_task(stage_task, _sync=True)
    storage = store.result_storage
    try:
        content = storage.read_path(job.storage_key, _sync=True)
    except ValueError:  # LocalFileSystem: no such path
        return None
    document = json.loads(content)
    if document["metadata"]["serializer"]["type"] != "json":
        return None
    result = document["result"]
    found = StageFiles.model_validate(json.loads(result) if isinstance(result, str) else result)
    return found if (found.stage, found.key) == (job.stage, job.key) else None


def _reference(job: StageJob) -> StageFiles:
    run = job.run
    record = run.run_dir.read(run.run_dir.stages / f"{job.stage}.json", StageRecord)
    return describe(
        run.run_dir,
        job.stage,
        job.key,
        root=run.location,
        complete=_is_complete(job),
        outputs=record.outputs,
    )


def _is_complete(job: StageJob) -> bool:
    try:
        return job.complete(job.run)
    except AssayError:
        return False
