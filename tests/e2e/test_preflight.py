"""A wrong set-up ends the whole flow as configuration: with its fix, a report, no golden, and nothing left running."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from accuracy_core.models import embedded_model
from accuracy_core.prompts.preflight import PreflightReport
from accuracy_core.schemas import RunDir

pytestmark = pytest.mark.slow
TASKS = Path(__file__).parents[2] / "accuracy_core" / "evals" / "tasks"


def assert_wrong_set_up(command, text, *findings: str) -> RunDir:
    """Exit 3, every finding with evidence and fix in what is printed and in the report, and no golden asked for."""
    assert command.code == 3, text
    run_dir = RunDir.at(command.output)
    report = command.report()
    assert (report["outcome"], report["verdict"], report["banner"]) == ("configuration", None, "grey")
    errors = run_dir.read(run_dir.preflight_json, PreflightReport).errors
    assert {finding.check for finding in errors} == set(findings)
    for finding in errors:
        assert finding.evidence in report["headline"]
        assert finding.fix in report["conclusion"]["fix"]
    assert "what to do" in text
    assert run_dir.report_html.stat().st_size > 100_000
    assert not (run_dir.stages / "goldens.json").exists()
    assert not (run_dir.stages / "prompt_analysis.json").exists()
    assert command.wait_gone(1) == []
    return run_dir


def test_what_files_and_parameters_give_away_starts_no_engine(assay):
    command = assay("--dtype", "float16", "--engine-arg", 'override_generation_config={"temperature": 0.7}')
    run_dir = assert_wrong_set_up(command, command.finish(), "dtype", "sampling_defaults")
    assert not run_dir.server_log.exists()


def test_what_only_the_requests_show_ends_it_before_a_golden(assay, tmp_path):
    """The engine is right, and evaluated for real; the task's pattern and its token limit are not."""
    folder = tmp_path / "tasks"
    shutil.copytree(TASKS, folder, ignore=shutil.ignore_patterns("*.yaml", "__pycache__"))
    task = (TASKS / "assay_arith.yaml").read_text("utf-8")
    for old, new in (
        ("task: assay_arith", "task: spoilt"),
        ('regex_pattern: "#### (\\\\-?[0-9\\\\.\\\\,]+)"', 'regex_pattern: "The answer is ([A-D])"'),
        ("max_gen_toks: 40", "max_gen_toks: 3"),
    ):
        assert old in task
        task = task.replace(old, new)
    (folder / "spoilt.yaml").write_text(task, "utf-8")
    command = assay("--include-path", str(folder), "--task", "spoilt", "--limit", "10")
    run_dir = assert_wrong_set_up(command, command.finish(), "filter", "truncation")
    assert run_dir.server_log.exists()


def test_weights_that_the_engine_would_make_up_are_a_wrong_set_up(assay, tmp_path):
    """The reference's own check left out: vLLM starts with a random linear layer and says nothing."""
    shutil.copytree(embedded_model(), tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.down_proj.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    accept = ("--accept", "weights")
    command = assay("--model", str(tmp_path / "model"), "--task", "assay_arith", "--limit", "2", *accept)
    run_dir = assert_wrong_set_up(command, command.finish(), "engine_weights")
    report = run_dir.read(run_dir.preflight_json, PreflightReport)
    assert {result.check: result.standing for result in report.results if result.findings} == {
        "engine_weights": "wrong", "weights": "accepted",
    }  # fmt: skip
    assert "model.layers.1.mlp.down_proj.weight" in command.report()["headline"]
    assert not (run_dir.stages / "task_analysis.json").exists()


def test_prompts_without_an_evaluation_have_a_preflight_too(assay):
    stages = [word for name in ("preflight", "prompt_analysis", "report") for word in ("--stage", name)]
    command = assay("--engine", "transformers", "--prompt", "Q: 1+1\nA:", "--output-length", "4", *stages)
    text = command.finish()
    assert command.code == 0, text
    run_dir = RunDir.at(command.output)
    report = run_dir.read(run_dir.preflight_json, PreflightReport)
    assert report.errors == report.not_measured == []
    assert '"assay.preflight"' in (run_dir.root / "junit.xml").read_text()
