"""The example scripts of logit validation, as a user starts them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from accuracy_core.engines.cores import lease_cores
from accuracy_core.engines.served import recording_spec
from accuracy_core.engines.server import start_server
from accuracy_core.schemas import EngineSpec

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_offline(tmp_path: Path) -> None:
    done = example("run_logit_validation_offline.py", "--output-length", "8", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "verdict: pass"
    assert "sigma_ratio" in done.stdout
    assert len(list(tmp_path.glob("prompt_analysis/prompt_*/prompt_result.json"))) == 3


def test_online_against_a_running_server(tmp_path: Path) -> None:
    spec = EngineSpec(model="embedded")
    with (
        lease_cores(spec, timeout_s=300, note="test") as lease,
        start_server(recording_spec(spec), lease, log_path=tmp_path / "server.log") as server,
    ):
        url = ["--url", server.base_url, "--output", str(tmp_path)]
        done = example("run_logit_validation_online.py", *url, "--output-length", "8")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "verdict: pass"
        assert server.alive
    result = json.loads((tmp_path / "prompt_analysis" / "prompt_0" / "prompt_result.json").read_text())
    rows = load_file(tmp_path / "rows" / "prompt-0.safetensors")["logits"]
    assert (len(rows), result["engine_route"]) == (8, "forced_decode")


def test_online_against_a_server_that_cannot_record(tmp_path: Path) -> None:
    spec = EngineSpec(model="embedded")
    with (
        lease_cores(spec, timeout_s=300, note="test") as lease,
        start_server(spec, lease, log_path=tmp_path / "server.log") as server,
    ):
        done = example("run_logit_validation_online.py", "--url", server.base_url)
    assert done.returncode == 3
    assert "--logits-processors" in done.stderr
