"""`assay calibrate`: refusals before anything starts, and two runs that say the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from accuracy_core.calibration import read_calibration
from flows.cli import app

SOUND = torch.randn(4096, generator=torch.Generator().manual_seed(0))


def call(*arguments):
    return CliRunner().invoke(app, ["calibrate", *map(str, arguments)])


@pytest.mark.parametrize(
    ("tensors", "code", "said"),
    [
        ({"weight": SOUND}, 0, "sound"),
        ({"weight": SOUND, "global_scale": torch.tensor(0.0314)}, 2, "scale: global_scale"),
    ],
)
def test_lint(tmp_path, tensors, code, said):
    file = tmp_path / "fixture.safetensors"
    save_file(tensors, file)
    result = call("lint", file)
    assert (result.exit_code, said in result.output) == (code, True)


def test_lint_of_no_fixture(tmp_path):
    file = tmp_path / "fixture.safetensors"
    file.write_text("text")
    assert call("lint", file).exit_code == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "/no/such/model"), "/no/such/model"),
        (("--model", "random:qwen33"), "unknown architecture"),
        (("--dtype", "int3"), "--dtype"),
        (("--seeds", "0"), "--seeds"),
        (("--seeds", "19"), "19 seeds are too few"),
        (("--seeds", "100000"), "give 1000 prompts"),
        (("--output", "s3://bucket/calibration.json"), "no local path"),
    ],
)
def test_what_is_refused_before_anything_starts(monkeypatch, arguments, said):
    def started():
        raise AssertionError("a Prefect API was started")

    monkeypatch.setattr("flows.calibrate.local_api", started)
    result = call(*arguments)
    assert result.exit_code == 3, result.output
    assert said in " ".join(result.output.split())


@pytest.mark.slow
def test_two_runs_of_the_command(tmp_path):
    """The second takes the figures of the first from Prefect's cache; file and page lie where they were asked for."""

    def run(name):
        command = [sys.executable, "-m", "flows.cli", "calibrate", "--quick", "--output", name]
        environment = {**os.environ, "COLUMNS": "160"}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout, read_calibration(tmp_path / name)

    said, first = run("first.json")
    assert "[calibration] 1/6 dtype noise" in said
    assert "determinism floor" in said
    assert (first.seeds, first.determinism.floor) == (20, 0.0)
    assert Path(tmp_path, "first.html").stat().st_size > 1e6
    again, second = run("again.json")
    assert (second.id, second.date) == (first.id, first.date)
    assert "dtype noise" not in again.split("measured")[0]
