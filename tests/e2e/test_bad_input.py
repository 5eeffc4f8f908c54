"""What a user can get wrong: a clear error, the right exit code, before anything expensive, nothing left running."""

from __future__ import annotations

import json
import os
import shutil
import socket
from importlib import resources
from pathlib import Path

import pytest
from typer.testing import CliRunner

from accuracy_core.models import resolve_model


@pytest.fixture
def run(tmp_path):
    """`run("--limit", "0")` in this process: every case here must end before an engine or the flow is started."""
    from flows.cli import app

    def call(*arguments, output=None):
        return CliRunner().invoke(app, ["run", "--output", str(output or tmp_path / "out"), *arguments])

    return call


SHIPPED = str(resources.files("accuracy_core.calibration") / "shipped/embedded-bfloat16.json")
CASES = {
    "missing model": (("--model", "/no/such/model"), "/no/such/model"),
    "unknown task": (("--task", "assay_aritth"), "assay_arith"),
    "unknown metric": (("--task", "assay_arith", "--threshold", "acc_norm,none=0.5"), "exact_match,strict-match"),
    "unknown filter": (("--threshold", "assay_arith/exact_match,strictmatch=0.5"), "strict-match"),
    "limit 0": (("--limit", "0"), "limit"),
    "unknown engine": (("--engine", "vlm"), "vllm"),
    "unknown fault": (("--fault", "mlp-scal"), "mlp-scale"),
    "unknown plugin": (("--config", "PLUGIN"), "logit_validation"),
    "unknown plugin by option": (("--plugin", "tensor_compre"), "tensor_compare"),
    "module pattern that matches nothing": (("--module", "model.layers.0.mpl"), "model.layers.0.mlp"),
    "empty prompt list": (("--config", "PROMPTS"), "empty list"),
    "tolerances that are not there": (("--config", "TOLERANCES"), "no-such.toml"),
    "calibration that is not there": (("--calibration", "no-such.json"), "no-such.json"),
    "calibration of another dtype": (("--dtype", "float16", "--calibration", SHIPPED), "--force-calibration"),
    "no such results": (("--results", "/no/such/results"), "/no/such/results"),
    "no such reference results": (("--reference-results", "/no/such/results"), "/no/such/results"),
    "analysis of nothing": (("--stage", "task_analysis"), "no evaluation to analyse"),
    "prompts of nothing": (("--stage", "prompt_analysis"), "no deviated prompts"),
    "output longer than the context": (("--output-length", "256"), "context"),
    "unknown option": (("--outptu", "x"), "--outptu"),
    "option that is no number": (("--limit", "many"), "--limit"),
    "no interpreter": (("--engine-python", "/no/such/python"), "/no/such/python"),
    "prompt too long": (
        ("--prompt", "Q: " + "1+" * 200 + "1\nA:", "--stage", "prompt_analysis", "--max-model-len", "64"),
        "max_model_len",
    ),
}
CONFIGS = {
    "PLUGIN": "prompt_analysis: {plugins: [logit_validaton]}",
    "PROMPTS": "prompt_analysis: {prompts: []}",
    "TOLERANCES": "prompt_analysis: {tolerances: no-such.toml}",
}


@pytest.mark.parametrize(("arguments", "named"), CASES.values(), ids=CASES.keys())
def test_it_is_named_and_exits_with_3(run, tmp_path, arguments, named):
    words = []
    for word in arguments:
        if word in CONFIGS:
            path = tmp_path / f"{word}.yaml"
            path.write_text(CONFIGS[word])
            word = str(path)
        words.append(word)
    result = run(*words)
    assert result.exit_code == 3, result.output
    assert named in " ".join(result.output.split()), result.output
    assert "Traceback" not in result.output


def test_results_without_samples_or_scores(run, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for option in ("--results", "--reference-results"):
        result = run(option, str(empty))
        assert result.exit_code == 3, result.output
        assert "no lm-eval results" in " ".join(result.output.split())


def test_a_bucket_that_cannot_be_written(run, monkeypatch):
    pytest.importorskip("cloudpathlib")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/no/such/file")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    result = run(output="s3://no-such-bucket/run")
    assert result.exit_code == 3, result.output
    said = " ".join(result.output.split())
    assert "s3://no-such-bucket/run: no object can be written there" in said
    assert "AWS_ACCESS_KEY_ID" in said


def test_default_thresholds_are_not_held_against_results_of_other_tasks(tmp_path):
    from accuracy_core.pipeline.run import resolve_run
    from accuracy_core.schemas import RunParameters

    cases = Path(__file__).parent.parent / "cases" / "lm_eval" / "group-weighted" / "run"
    given = {"output_dir": str(tmp_path), "engine": {"model": "embedded", "engine": "transformers"}}
    run = resolve_run(RunParameters.model_validate({**given, "evaluation": {"results": str(cases)}}))
    assert run.parameters.thresholds == {}


def test_a_port_that_is_taken(run):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = run("--port", str(taken.getsockname()[1]))
    assert result.exit_code == 3
    assert "is taken" in result.output


def test_an_output_directory_that_is_a_file(run, tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    result = run("--prompt", "x", "--stage", "prompt_analysis", output=file)
    assert result.exit_code == 3
    assert "not writable" in " ".join(result.output.split())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_directory_without_permission(run, tmp_path):
    tmp_path.chmod(0o500)
    result = run(output=tmp_path / "out")
    assert result.exit_code == 3
    assert "not writable" in result.output


def test_a_model_without_tokenizer(run, tmp_path):
    source = resolve_model("embedded")
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(os.path.join(source, name), folder / name)
    result = run("--model", str(folder))
    assert result.exit_code == 3
    assert "tokenizer" in result.output


@pytest.mark.slow
def test_an_unknown_engine_argument_shows_the_servers_last_lines(assay):
    command = assay("--engine-arg", "no_such_argument=1", "--task", "assay_arith", "--limit", "2")
    text = command.finish()
    assert command.code == 3, text
    assert "no_such_argument" in text or "no-such-argument" in text
    assert command.wait_gone(1) == []


@pytest.mark.slow
def test_an_engine_that_dies_at_start_shows_its_last_lines(assay, tmp_path):
    config = tmp_path / "p.yaml"
    config.write_text(json.dumps({"engine": {"model": "embedded", "env": {"VLLM_CPU_KVCACHE_SPACE": "not-a-number"}}}))
    command = assay("--task", "assay_arith", "--limit", "2", "--config", str(config))
    text = command.finish()
    assert command.code in (1, 3), text
    assert "not-a-number" in text
    assert command.wait_gone(1) == []
