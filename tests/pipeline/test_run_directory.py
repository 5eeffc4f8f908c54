"""A run directory belongs to one run at a time, and to one target when only some stages are repeated."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from filelock import Timeout

from accuracy_core.errors import ConfigurationError
from accuracy_core.pipeline.claim import claimed
from accuracy_core.pipeline.earlier import earlier_analysis, earlier_task_status
from accuracy_core.pipeline.run import record, resolve_run
from accuracy_core.schemas import (
    EngineSpec,
    FaultSpec,
    PromptParameters,
    RunDir,
    RunParameters,
    StageRecord,
    TaskStatus,
)


def parameters(tmp_path, **engine):
    return RunParameters(
        engine=EngineSpec(model="embedded", engine="transformers", **engine),
        prompt_analysis=PromptParameters(prompts=["Q: 1+1\nA:"], output_length=4),
        stages=["prompt_analysis", "report"],
        output_dir=str(tmp_path),
    )


def test_a_second_run_is_refused_while_the_first_goes_on(tmp_path):
    run_dir = RunDir.at(tmp_path)
    with claimed(run_dir), pytest.raises(ConfigurationError, match="another run is writing"), claimed(run_dir):
        raise AssertionError("both hold it")
    with claimed(run_dir):
        pass


def test_an_error_inside_a_claim_is_not_taken_for_a_claim(tmp_path):
    with pytest.raises(Timeout), claimed(RunDir.at(tmp_path)):
        raise Timeout("some other lock")


def test_some_stages_of_another_target_are_refused(tmp_path):
    record(resolve_run(parameters(tmp_path)))
    resolve_run(parameters(tmp_path))
    with pytest.raises(ConfigurationError, match="another target"):
        resolve_run(parameters(tmp_path, fault=FaultSpec(name="mlp-scale")))


def test_results_of_earlier_runs_are_found(tmp_path):
    run = resolve_run(parameters(tmp_path))
    assert earlier_task_status(run) is None
    assert earlier_analysis(run) is None
    status = TaskStatus(passed=True)
    run.run_dir.write(run.run_dir.task_analysis / "task_status.json", status)
    assert earlier_task_status(run) == status


def test_a_new_run_forgets_what_earlier_ones_said_about_its_stages(tmp_path):
    run = resolve_run(parameters(tmp_path))
    for stage in ("evaluate", "goldens", "prompt_analysis", "report"):
        started = datetime(2040, 1, 1, tzinfo=UTC)  # by the clock of another host
        done = StageRecord(stage=stage, inputs_hash="h", started=started, duration_s=1, status="failed")
        run.run_dir.write(run.run_dir.stages / f"{stage}.json", done)
    record(run)
    assert [path.stem for path in run.run_dir.stages.glob("*.json")] == ["evaluate"]  # this one leaves it as it is
