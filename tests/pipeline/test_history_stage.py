"""Which runs become part of the history, and with which numbers."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from accuracy_core.models import resolve_model
from accuracy_core.outcome import Verdict
from accuracy_core.pipeline.history_stage import HISTORY_DIR, history_location, record_history
from accuracy_core.pipeline.run import Run
from accuracy_core.prompts.conclusion import conclude
from accuracy_core.report.history import HistoryIndex, HistoryWindow
from accuracy_core.schemas import (
    EngineSpec,
    GuardHit,
    PluginStatus,
    PromptAnalysisStatus,
    RunParameters,
    ScoreRow,
    StageRecord,
    TaskStatus,
)

TASK = TaskStatus(passed=True, scores=[ScoreRow(key="t/a,n", task="t", metric="a", filter="n", value=0.5, stderr=0.1)])
GUARD = GuardHit(guard="l2_ratio", prompt=1, token=2, value=9.0, limit=3.0)
ANALYSIS = PromptAnalysisStatus(
    verdict=Verdict.SUSPECT,
    plugins={
        "logit_validation": PluginStatus(
            plugin="logit_validation",
            verdict=Verdict.SUSPECT,
            worst=GUARD,
            aggregates={"sigma_ratio": 1.25, "agg_bc": 0.97},
        )
    },
)


@pytest.fixture
def run(tmp_path):
    made = Run(
        parameters=RunParameters(
            engine=EngineSpec(model="embedded"), output_dir=str(tmp_path / "run"), history_dir=str(tmp_path / "history")
        ),
        model_path=str(resolve_model("embedded")),
        model_name="tiny",
        model_fingerprint="f" * 64,
        target_identity="t",
    )
    made.run_dir.write(made.run_dir.task_analysis / "task_status.json", TASK)
    made.run_dir.write(made.run_dir.prompt_analysis_json, ANALYSIS)
    return made


def stage(run, name, status):
    record = StageRecord(stage=name, inputs_hash="h", started=datetime.now(UTC), duration_s=7.5, status=status)
    run.run_dir.write(run.run_dir.stages / f"{name}.json", record)


def window(run):
    return run.run_dir.read(run.run_dir.root / "history.json", HistoryWindow)


def test_a_run_leaves_its_numbers(run):
    stage(run, "evaluate", "cached")
    stage(run, "goldens", "done")
    stage(run, "prompt_analysis", "done")
    record_history(run, conclude(TASK, ANALYSIS))
    (entry,) = window(run).entries
    assert (entry.sequence, entry.device, entry.verdict) == (1, "cpu-vllm-tp1", Verdict.SUSPECT)
    assert entry.scores["t/a,n"].value == 0.5
    assert (entry.sigma_ratio, entry.agg_bc) == (1.25, 0.97)
    assert (entry.worst_guard, entry.worst_value, entry.worst_limit) == ("l2_ratio", 9.0, 3.0)
    assert entry.stage_s == {"goldens": 7.5, "prompt_analysis": 7.5}
    assert entry.cached == ["evaluate"]
    assert entry.location == str(run.run_dir.root)


def test_a_report_that_is_drawn_again_is_no_new_point(run):
    stage(run, "prompt_analysis", "done")
    record_history(run, conclude(TASK, ANALYSIS))
    stage(run, "prompt_analysis", "cached")
    record_history(run, conclude(TASK, ANALYSIS))
    only = run.model_copy(update={"parameters": run.parameters.model_copy(update={"stages": ["report"]})})
    stage(run, "prompt_analysis", "done")
    record_history(only, conclude(TASK, ANALYSIS))
    assert len(window(run).entries) == 1
    assert len(HistoryIndex(history_location(run)).window("f" * 64, "cpu-vllm-tp1").entries) == 1


def test_an_index_that_cannot_be_used_costs_no_report(run, tmp_path, caplog):
    (tmp_path / "history").write_text("a file")
    stage(run, "prompt_analysis", "done")
    record_history(run, conclude(TASK, ANALYSIS))
    assert "history" in caplog.text
    assert not (run.run_dir.root / "history.json").exists()


def test_where_the_history_is(run, monkeypatch, tmp_path):
    assert history_location(run) == str(tmp_path / "history")
    unset = run.model_copy(update={"parameters": run.parameters.model_copy(update={"history_dir": None})})
    monkeypatch.setenv(HISTORY_DIR, "s3://bucket/history")
    assert history_location(unset) == "s3://bucket/history"
    monkeypatch.delenv(HISTORY_DIR)
    assert history_location(unset).endswith("/history")
