"""The selftest itself, on real engines: a small matrix through the product's own path."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from accuracy_core.selftest import CaseResult, Plan, make_plan, run_selftest
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


def test_known_runs_are_not_made_again_and_failed_ones_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan("transformers", faults=["mlp-scale"], architectures=["embedded"], clean_seeds=1)
    made: list[str | None] = []

    def run_architecture(left: Plan, *args: object) -> Iterator[CaseResult]:
        for case in left.cases:
            made.append(case.fault)
            yield CaseResult(architecture=case.architecture, fault=case.fault, detected=case.fault is not None)

    monkeypatch.setattr("accuracy_core.selftest.run._run_architecture", run_architecture)
    known = [
        CaseResult(architecture="embedded", fault="mlp-scale", detected=True, evidence=["kept"]),
        CaseResult(architecture="embedded", detected=False, error="the engine died"),
        CaseResult(architecture="gemma2", detected=False),
    ]
    report = run_selftest(plan, work_dir=tmp_path, known=known)
    assert made == [None]
    assert [(case.fault, case.evidence) for case in report.cases] == [("mlp-scale", ["kept"]), (None, [])]


def test_a_wrong_command_line_is_a_configuration_error() -> None:
    for arguments in (["--engine", "tpu"], ["--fault", "kv-slit"], ["--arch", "gemma9"]):
        done = CliRunner().invoke(app, ["selftest", *arguments])
        assert done.exit_code == 3, done.output
