"""The selftest itself, on real engines: a small matrix through the product's own path."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from accuracy_core.selftest import make_plan, run_selftest
from flows.cli import app


@pytest.mark.slow
def test_faults_of_every_level_are_found_on_hugging_face(tmp_path: Path) -> None:
    plan = make_plan(
        "transformers",
        faults=["mlp-scale", "kv-slot", "rope-theta", "double-bos", "sampler-default"],
        architectures=["embedded"],
        clean_seeds=1,
    )
    report = run_selftest(plan, work_dir=tmp_path)
    assert report.passed, report.summary()
    assert {case.fault: case.module for case in report.faulty if case.level != "config"} == {
        "mlp-scale": "model.layers.1.mlp",
        "kv-slot": "model.layers.1.self_attn.attn",
        "rope-theta": "model.layers.0.self_attn.query",
    }


@pytest.mark.slow
def test_the_command_says_what_it_found_and_exits_with_it(tmp_path: Path) -> None:
    arguments = ["selftest", "--engine", "hf", "--arch", "embedded", "--fault", "nan-module", "--clean", "0"]
    done = CliRunner().invoke(app, [*arguments, "--json", "--output", str(tmp_path)])
    assert done.exit_code == 0
    (case,) = json.loads((tmp_path / "selftest.json").read_text())["cases"]
    assert (case["fault"], case["detected"], case["module_right"]) == ("nan-module", True, True)
    assert json.loads(done.stdout)["cases"] == [case]


def test_a_wrong_command_line_is_a_configuration_error() -> None:
    for arguments in (["--engine", "tpu"], ["--fault", "kv-slit"], ["--arch", "gemma9"]):
        done = CliRunner().invoke(app, ["selftest", *arguments])
        assert done.exit_code == 3, done.output
