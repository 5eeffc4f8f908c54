"""The main job on the embedded default: green, complete, and nothing left running."""

from __future__ import annotations

import json

import pytest

from accuracy_core.pipeline.run import Run
from accuracy_core.prompts.preflight import PreflightReport
from accuracy_core.schemas import DeviatedPrompts, PromptAnalysisStatus, RunDir, StageRecord, TaskStatus
from tests.e2e.conftest import SECRET, cpu_is_free

pytestmark = pytest.mark.slow


def test_exits_with_0_and_a_green_banner(finished_run):
    command, text = finished_run
    assert command.code == 0, text
    assert "banner: green" in text
    report = command.report()
    assert (report["outcome"], report["verdict"], report["banner"]) == ("numerics", "pass", "green")


def test_the_documented_tree_is_there_and_typed(finished_run):
    run_dir = RunDir.at(finished_run[0].output)
    assert run_dir.report_html.stat().st_size > 100_000
    results = list(run_dir.eval_results.glob("*/results_*.json"))
    assert len(results) == 1
    assert list(results[0].parent.glob("samples_*.jsonl"))
    assert run_dir.server_log.exists()
    task = run_dir.read(run_dir.task_analysis / "task_status.json", TaskStatus)
    assert task.passed is True
    assert (run_dir.task_analysis / "task_report.txt").exists()
    assert (run_dir.task_analysis / "results_summary.json").exists()
    prompts = run_dir.read(run_dir.deviated_prompts, DeviatedPrompts)
    assert prompts.prompts, "the embedded model gets about one in ten wrong"
    assert all(prompt.token_ids for prompt in prompts.prompts if prompt.kind == "text")
    analysis = run_dir.read(run_dir.prompt_analysis_json, PromptAnalysisStatus)
    assert analysis.n_prompts == 3
    for index in range(3):
        folder = run_dir.prompt(index)
        names = {path.name for path in folder.iterdir()}
        assert {"prompt.txt", "validation_log.txt", "prompt_result.json", "logit_validation"} <= names
    assert (run_dir.prompt_analysis / "prompt_report.txt").exists()


def test_every_stage_left_its_record(finished_run):
    run_dir = RunDir.at(finished_run[0].output)
    names = {path.stem for path in run_dir.stages.glob("*.json")}
    assert names == {
        "preflight", "preflight_requests", "evaluate", "task_analysis", "goldens", "prompt_analysis", "report",
    }  # fmt: skip
    for path in run_dir.stages.glob("*.json"):
        record = run_dir.read(path, StageRecord)
        # tests that ran before this one may have left the same stages in the cache
        assert record.status in ("done", "cached")
        assert len(record.inputs_hash) == 64


def test_the_preflight_found_nothing_wrong_on_either_side(finished_run):
    run_dir = RunDir.at(finished_run[0].output)
    report = run_dir.read(run_dir.preflight_json, PreflightReport)
    assert report.errors == []
    assert report.not_measured == []
    assert set(report.checks) >= {"weights", "tokens", "truncation", "filters"}
    # results that came from the cache loaded nothing
    asked_engine = not all(cached(run_dir, stage) for stage in ("evaluate", "prompt_analysis"))
    assert ("engine_weights" in report.checks) is asked_engine


def cached(run_dir: RunDir, stage: str) -> bool:
    return run_dir.read(run_dir.stages / f"{stage}.json", StageRecord).status == "cached"


def test_scores_are_those_in_lm_evals_own_file(finished_run):
    run_dir = RunDir.at(finished_run[0].output)
    (path,) = run_dir.eval_results.glob("*/results_*.json")
    theirs = json.loads(path.read_text())["results"]
    ours = {row.key: row.value for row in run_dir.read(run_dir.task_analysis / "task_status.json", TaskStatus).scores}
    for name in ("strict-match", "flexible-extract"):
        assert ours[f"assay_arith/exact_match,{name}"] == pytest.approx(theirs["assay_arith"][f"exact_match,{name}"])
    assert ours["assay_mc/acc,none"] == pytest.approx(theirs["assay_mc"]["acc,none"])


def test_nothing_is_alive_and_the_cores_are_free(finished_run):
    command, _ = finished_run
    assert command.relatives() == []
    assert cpu_is_free()


def test_a_second_run_answers_from_the_caches_and_says_the_same(finished_run, assay):
    first, _ = finished_run
    second = assay()
    text = second.finish()
    assert second.code == 0, text
    keys = [row["golden_key"] for row in _results(first)]
    assert keys == [row["golden_key"] for row in _results(second)]
    assert [row["rows"] for row in _results(first)] == [row["rows"] for row in _results(second)]


def test_no_secret_reaches_the_run_directory(finished_run):
    command, text = finished_run
    assert SECRET not in text
    for path in command.output.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path
    run = Run.from_json((command.output / "run_config.json").read_text())
    assert run.parameters.engine.env == {"SOME_TOKEN": "<set>"}


def _results(command):
    return [
        json.loads(path.read_text()) for path in sorted(command.output.glob("prompt_analysis/*/prompt_result.json"))
    ]
