"""Stage records are written however a stage ends, and progress reaches whoever listens."""

from __future__ import annotations

import pytest

from accuracy_core.errors import EngineDiedError
from accuracy_core.pipeline import progress
from accuracy_core.pipeline.stages import recorded
from accuracy_core.schemas import RunDir, StageRecord, fingerprint


def record(run_dir: RunDir, stage: str) -> StageRecord:
    return run_dir.read(run_dir.stages / f"{stage}.json", StageRecord)


def test_a_stage_that_ends_well(tmp_path):
    run_dir = RunDir.at(tmp_path)
    with recorded(run_dir, "evaluate", {"a": 1}, ["eval_results"]):
        pass
    found = record(run_dir, "evaluate")
    assert (found.status, found.outputs, found.inputs_hash) == ("done", ["eval_results"], fingerprint({"a": 1}))
    assert found.duration_s >= 0
    assert found.versions["torch"]


@pytest.mark.parametrize(
    ("error", "message"), [(EngineDiedError("gone"), "gone"), (KeyboardInterrupt(), "KeyboardInterrupt: ")]
)
def test_a_stage_that_breaks_is_recorded_and_the_error_goes_on(tmp_path, error, message):
    run_dir = RunDir.at(tmp_path)
    with pytest.raises(type(error)), recorded(run_dir, "evaluate", {}):
        raise error
    found = record(run_dir, "evaluate")
    assert (found.status, found.outcome, found.message) == ("failed", "infrastructure", message)


def test_listeners_hear_events_only_while_they_listen():
    heard: list[progress.Event] = []
    with progress.listening(heard.append):
        progress.reporter("evaluate")(3, 10)
    progress.report("evaluate", 4, 10)
    assert heard == [progress.Event("evaluate", 3, 10)]
