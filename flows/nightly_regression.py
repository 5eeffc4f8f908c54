"""The nightly: every row of a matrix at every chosen level, and one summary over all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args
from uuid import UUID

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.client.schemas.objects import State, StateType
from prefect.states import Completed, Crashed, Failed
from pydantic import Field

from accuracy_core.errors import AssayError
from accuracy_core.outcome import Outcome
from accuracy_core.schemas.base import Part
from flows.current_run import under_worker
from flows.dispatch import StageEnd, Target, run_stage, submit, wait, wait_for_api
from flows.hooks import cancel_children
from flows.levels import LEVELS, LevelName
from flows.matrix import MatrixRow, load_matrix, matrix_file
from flows.naming import tags_of
from flows.run_root import with_run_directory
from tasks.showing import showing

CPU_POOL = "cpu-pool"
#: how a nightly with such rows ends, worst first
_ORDER = ("AccuracyFailed", "Crashed", "ConfigurationFailed", "NotMeasured", "Completed")
_STATE_OF_OUTCOME = {
    Outcome.CONFIGURATION: "ConfigurationFailed",
    Outcome.INFRASTRUCTURE: "Crashed",
    Outcome.NOT_MEASURED: "NotMeasured",
}


class NightlyParameters(Part):
    """What a nightly runs."""

    matrix: str | None = Field(
        None, description="YAML file of models, devices and tasks; empty: $ASSAY_NIGHTLY_MATRIX, else the bundled one"
    )
    levels: list[LevelName] = Field(
        default_factory=lambda: list(get_args(LevelName)), min_length=1, description="levels to run"
    )
    only: list[str] | None = Field(None, description="names of rows to run; empty: all rows")
    at_once: int = Field(
        2, ge=1, le=64, description="runs at a time; keep it below the limit of the cpu pool, for ad hoc runs"
    )


@dataclass(frozen=True)
class RowEnd:
    """How one row ended. `state` is one of the names in the table of outcomes."""

    name: str
    level: LevelName
    state: str
    message: str
    directory: str = ""


@dataclass(frozen=True)
class _Job:
    row: MatrixRow
    level: LevelName
    parameters: Any
    target: Target


def nightly_name() -> str:
    """`nightly-<levels>` of the current flow run."""
    from prefect.runtime import flow_run

    given: Any = flow_run.parameters.get("parameters")
    parameters = given if isinstance(given, NightlyParameters) else NightlyParameters.model_validate(given or {})
    return f"nightly-{'+'.join(parameters.levels)}"


@flow(
    name="nightly-regression",
    flow_run_name=nightly_name,
    retries=0,
    persist_result=False,
    on_crashed=[cancel_children],
    on_failure=[cancel_children],
    on_cancellation=[cancel_children],
)
def nightly_regression(parameters: NightlyParameters = NightlyParameters()) -> State[Any]:  # noqa: B008 - immutable
    """Run the matrix. One row's failure stops no other; the run fails when any row's verdict failed.

    Args:
        parameters: the matrix, the levels, and how many runs at a time.
    """
    try:
        rows = _chosen(load_matrix(matrix_file(parameters.matrix)), parameters.only)
    except AssayError as error:
        return Failed(name="ConfigurationFailed", message=f"CONFIGURATION: {error}")
    ends = list(_run_all(rows, parameters))
    with showing("the rows"):
        _show(ends)
    if under_worker():
        wait_for_api()
    return summary_state(ends)


def summary_state(ends: list[RowEnd]) -> State[Any]:
    """One state over all rows: failed when any verdict failed, and never completed unless every row is."""
    counts = {name: [end.name for end in ends if end.state == name] for name in _ORDER}
    told = "; ".join(f"{len(names)} {name}" for name, names in counts.items() if names)
    worst = next((name for name in _ORDER if counts[name]), "NotMeasured")
    names = ", ".join(f"{end.name} ({end.level})" for end in ends if end.state == worst)
    match worst:
        case "Completed":
            return Completed(message=f"ACCURACY: {told}")
        case "Crashed":
            return Crashed(message=f"infra: {told}: {names}")
        case "AccuracyFailed":
            return Failed(name=worst, message=f"ACCURACY: {told}: {names}")
        case "ConfigurationFailed":
            return Failed(name=worst, message=f"CONFIGURATION: {told}: {names}")
        case _:
            return Failed(name="NotMeasured", message=f"NOT MEASURED: {told or 'no row'}: {names}")


def _chosen(rows: list[MatrixRow], only: list[str] | None) -> list[MatrixRow]:
    if only is None:
        return rows
    chosen = [row for row in rows if row.name in only]
    missing = [MatrixRow(name, rows[0].placement, None, "the matrix has no such row")
               for name in only if name not in {row.name for row in rows}]  # fmt: skip
    return chosen + missing


def _run_all(rows: list[MatrixRow], parameters: NightlyParameters) -> Iterator[RowEnd]:
    jobs: list[_Job] = []
    for level in parameters.levels:
        for row in rows:
            if row.parameters is None:
                get_run_logger().error("row %s: %s", row.name, row.problem)
                yield RowEnd(row.name, level, "ConfigurationFailed", row.problem)
                continue
            jobs.append(_job(row, level))
    yield from _on_workers(jobs, parameters.at_once) if under_worker() else map(_here, jobs)


def _job(row: MatrixRow, level: LevelName) -> _Job:
    assert row.parameters is not None
    shaped = LEVELS[level].shape(row.parameters)
    shaped = with_run_directory(shaped, part=f"{row.name}-{level}")
    tags = [*tags_of(shaped), "nightly", f"level:{LEVELS[level].number}"]
    return _Job(row, level, shaped, Target(LEVELS[level].deployment, CPU_POOL, "nightly", tags))


def _here(job: _Job) -> RowEnd:
    """Without a worker: one after the other in this process."""
    try:
        flow_ = LEVELS[job.level].flow()
        end = run_stage(flow_, job.target, parameters=job.parameters, placement=job.row.placement)
        return _ended(job, end)
    except Exception as error:  # this row's failure must not take the others with it
        return _broken(job, error)


def _on_workers(jobs: list[_Job], at_once: int) -> Iterator[RowEnd]:
    """As runs of their own, `at_once` at a time, in order."""
    waiting, running = list(reversed(jobs)), list[tuple[_Job, UUID]]()
    while waiting or running:
        while waiting and len(running) < at_once:
            job = waiting.pop()
            try:
                name = f"{job.row.name}-{job.level}"
                child = submit(job.target, name=name, parameters=job.parameters, placement=job.row.placement)
                running.append((job, child))
            except Exception as error:
                yield _broken(job, error)
        if running:
            index, end = _first_end([child for _, child in running], running[0][0].target)
            job, _ = running.pop(index)
            yield _ended(job, end)


def _first_end(children: list[UUID], target: Target) -> tuple[int, StageEnd]:
    """Index and end of the child that ends first."""
    end = wait(children, target)
    return next(index for index, child in enumerate(children) if str(child) == end.run_id), end


def _ended(job: _Job, end: StageEnd) -> RowEnd:
    state = end.name if end.name in _ORDER else "Completed" if end.kind is StateType.COMPLETED else "Crashed"
    return RowEnd(job.row.name, job.level, state, end.message, job.parameters.output_dir or "")


def _broken(job: _Job, error: Exception) -> RowEnd:
    get_run_logger().error("row %s: %s", job.row.name, error)
    state = _STATE_OF_OUTCOME.get(error.outcome, "Crashed") if isinstance(error, AssayError) else "Crashed"
    return RowEnd(job.row.name, job.level, state, str(error))


def _show(ends: list[RowEnd]) -> None:
    """The summary in the UI. Messages may quote model output: in the markdown they stand in code blocks."""
    table = [
        {"row": end.name, "level": end.level, "state": end.state, "message": end.message[:300], "run": end.directory}
        for end in ends
    ]
    create_table_artifact(table, key="nightly-rows", description="Every row of the matrix")
    lines = [f"- **{end.state}** `{end.name}` ({end.level})\n\n  ```\n  {_inert(end.message)}\n  ```\n" for end in ends]
    create_markdown_artifact("# Nightly\n\n" + "\n".join(lines), key="nightly-summary", description="Nightly")


def _inert(text: str) -> str:
    first = text.splitlines()[0] if text else "no message"
    return first.replace("```", "'''")[:500]
