"""Stages through Prefect's result storage: computed once, never stale, and no trouble of the cache costs a run."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, PREFECT_LOCAL_STORAGE_PATH, temporary_settings

from accuracy_core.errors import ConfigurationError, EngineDiedError
from accuracy_core.models import resolve_model
from accuracy_core.pipeline.run import Run
from accuracy_core.pipeline.stages import recorded
from accuracy_core.schemas import EngineSpec, RunParameters, StageRecord
from tasks.stage_cache import obtain_stage

pytestmark = pytest.mark.slow
STAGE = "task_analysis"


@pytest.fixture(scope="module")
def api() -> Iterator[str]:
    from flows.local_api import local_api

    with local_api() as url:
        yield url


@pytest.fixture
def storage(api: str, tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "results"
    # the heartbeat thread makes every flow last a second longer
    with temporary_settings({PREFECT_LOCAL_STORAGE_PATH: folder, PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield folder


class Stage:
    """A stage that writes one file and counts how often it is computed."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.computed: list[str] = []
        self.error: Exception | None = None

    def run(self, name: str, **more: Any) -> Run:
        parameters = RunParameters(
            engine=EngineSpec(model="embedded"), output_dir=str(self.tmp_path / name), stages=[STAGE], **more
        )
        return Run(
            parameters=parameters,
            model_path=str(resolve_model("embedded")),
            model_name="tiny",
            model_fingerprint="f",
            target_identity="t",
        )

    def obtain(self, name: str = "a", key: str = "key", *, compute: bool = True, **more: Any) -> bool:
        complete = more.pop("complete", lambda run: True)
        run = self.run(name, **more)

        def body() -> None:
            with recorded(run.run_dir, STAGE, {}, ["task_analysis"]):
                self.computed.append(name)
                if self.error:
                    raise self.error
                path = run.run_dir.task_analysis / "task_status.json"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"{name} {key}")

        @flow
        def ask() -> bool:
            return obtain_stage(run, STAGE, lambda _: key, body if compute else None, complete=complete)

        return ask()

    def text(self, name: str) -> str:
        return (self.tmp_path / name / "task_analysis" / "task_status.json").read_text()

    def record(self, name: str) -> StageRecord:
        run_dir = self.run(name).run_dir
        return run_dir.read(run_dir.stages / f"{STAGE}.json", StageRecord)


@pytest.fixture
def stage(storage: Path, tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_computed_once_for_all_runs_with_the_same_inputs(stage: Stage, storage: Path) -> None:
    assert stage.obtain("a")
    assert stage.record("a").status == "done"
    assert stage.obtain("a")
    assert stage.obtain("b")
    assert stage.computed == ["a"]
    assert stage.text("b") == stage.text("a")
    record = stage.record("b")
    assert (record.status, record.inputs_hash, record.outputs) == ("cached", "key", ["task_analysis"])
    assert str(stage.tmp_path / "a") in record.message
    (stored,) = [path for path in storage.rglob("*") if path.is_file()]
    assert stored.stat().st_size < 2000
    assert json.loads(stored.read_text())["metadata"]["serializer"]["type"] == "json"


def test_other_inputs_and_refresh_compute(stage: Stage) -> None:
    stage.obtain("a")
    stage.obtain("b", key="other")
    assert stage.computed == ["a", "b"]
    stage.obtain("c", refresh=[STAGE])
    assert stage.computed == ["a", "b", "c"]
    stage.obtain("d")
    assert stage.text("d") == "c key"  # what was refreshed last is what later runs get


def test_without_compute_only_earlier_results_will_do(stage: Stage) -> None:
    assert not stage.obtain("a", compute=False)
    stage.obtain("a")
    assert stage.obtain("b", compute=False)
    assert not stage.obtain("c", compute=False, refresh=[STAGE])
    assert stage.computed == ["a"]


def test_a_host_that_cannot_tell_the_key_leaves_it_to_another(stage: Stage) -> None:
    def cannot(run: Run) -> str:
        raise ConfigurationError("no engine here")

    @flow
    def ask(compute: bool) -> bool:
        return obtain_stage(stage.run("a"), STAGE, cannot, (lambda: None) if compute else None)

    assert ask(False) is False
    with pytest.raises(ConfigurationError, match="no engine here"):
        ask(True)


@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_results_that_changed_or_vanished_are_computed_again(stage: Stage, damage: str) -> None:
    stage.obtain("a")
    path = stage.tmp_path / "a" / "task_analysis" / "task_status.json"
    path.write_text("A key") if damage == "changed" else path.unlink()
    stage.obtain("b")
    assert stage.computed == ["a", "b"]
    assert stage.text("b") == "b key"
    stage.obtain("c")
    assert stage.text("c") == "b key"  # the new reference replaced the old one


def test_results_that_were_not_complete_serve_no_later_run(stage: Stage) -> None:
    stage.obtain("a", complete=lambda run: False)
    stage.obtain("b")
    assert stage.computed == ["a", "b"]


def test_a_failure_is_not_cached_and_keeps_its_type(stage: Stage) -> None:
    stage.error = EngineDiedError("gone", log_tail="last words")
    with pytest.raises(EngineDiedError, match="gone") as caught:
        stage.obtain("a")
    assert caught.value.log_tail == "last words"
    assert stage.computed == ["a"]
    stage.error = None
    stage.obtain("a")
    assert stage.computed == ["a", "a"]


class Evil:
    def __reduce__(self) -> Any:
        return (open, ("/tmp/assay-must-not-exist", "w"))


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"metadata": {"serializer": {"type": "json"}}, "result": "{}"}', "pickle"]
)
def test_a_damaged_or_hostile_record_is_computed_over(stage: Stage, storage: Path, content: str) -> None:
    stage.obtain("a")
    (stored,) = [path for path in storage.rglob("*") if path.is_file()]
    if content == "pickle":
        record = json.loads(stored.read_text())
        record["metadata"]["serializer"] = {"type": "pickle", "picklelib": "pickle"}
        record["result"] = base64.encodebytes(pickle.dumps(Evil())).decode()
        content = json.dumps(record)
    stored.write_text(content)
    stage.obtain("b")
    assert stage.computed == ["a", "b"]
    assert not Path("/tmp/assay-must-not-exist").exists()
    stage.obtain("c")
    assert stage.computed == ["a", "b"]


def test_a_storage_that_is_away_costs_no_run(stage: Stage, storage: Path) -> None:
    storage.write_text("a file where the folder should be")
    assert stage.obtain("a")
    assert stage.obtain("a")
    assert stage.computed == ["a", "a"]
    assert stage.text("a") == "a key"
