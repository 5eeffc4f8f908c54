"""`assay trigger` against everything that `assay up` starts: four runs, four exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from accuracy_core.engines import processes
from accuracy_core.engines.server import free_port

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
UP_TIMEOUT_S = 300
PROMPTS = {"prompts": ["Q: 47+38\nA:"], "output_length": 16}
#: the engine that needs no interpreter of its own
ENGINE = {"model": "embedded", "engine": "transformers"}
CLEAN = {"engine": ENGINE, "prompt_analysis": PROMPTS, "stages": ["prompt_analysis", "report"]}
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "clean": (CLEAN, 0),
    "faulty": ({**CLEAN, "engine": {**ENGINE, "fault": {"name": "mlp-scale", "strength": 2.0}}}, 2),
    "misconfigured": ({**CLEAN, "engine": {**ENGINE, "model": "/no/such/model"}}, 3),
    # the workers' S3 server is not there
    "infrastructure": ({**CLEAN, "output_dir": "s3://no-bucket/run"}, 1),
}


@dataclass
class Up:
    url: str
    home: Path
    runs: Path


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder, port = tmp_path_factory.mktemp("up"), free_port()
    environment = {
        **os.environ, "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s", "ASSAY_TEST_TAG": str(folder),
    }  # fmt: skip
    environment.pop("PREFECT_API_URL", None)
    command = [sys.executable, "-m", "deployments.up", "--home", str(folder / "home"), "--port", str(port), "--auth",
               "--runs", str(folder / "runs")]  # fmt: skip
    log = folder / "log"
    with log.open("w") as stream:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=stream, stderr=stream)
    try:
        deadline = time.monotonic() + UP_TIMEOUT_S
        while "ready" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        yield Up(f"http://127.0.0.1:{port}/api", folder / "home", folder / "runs")
    finally:
        process.terminate()
        process.wait(timeout=60)
        marked = [p for p in processes.all_pids() if processes.environment_of(p).get("ASSAY_TEST_TAG") == str(folder)]
        processes.end(marked)


def trigger(up: Up, folder: Path, parameters: dict[str, Any], auth: str | None = None) -> Any:
    environment = {**os.environ, "PREFECT_API_URL": up.url, "COLUMNS": "200"}
    environment["PREFECT_API_AUTH_STRING"] = auth or (up.home / "auth-string").read_text().strip()
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", "trigger", "ci", "--params", json.dumps(parameters), "--wait",
         "--timeout", "300", "--fetch", str(folder)],
        cwd=ROOT, env=environment, text=True, capture_output=True, timeout=400, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_four_runs_four_exit_codes(up: Up, tmp_path: Path, case: str) -> None:
    parameters, code = CASES[case]
    done = trigger(up, tmp_path / "results", parameters)
    assert done.returncode == code, done.stdout + done.stderr
    if case in ("clean", "faulty"):
        report = json.loads((tmp_path / "results" / "report.json").read_text())
        assert report["verdict"] == (None if case == "clean" else "fail")
        assert "<testsuites" in (tmp_path / "results" / "junit.xml").read_text()
        assert (tmp_path / "results" / "combined_report.html").stat().st_size > 100_000


def test_a_wrong_auth_string_is_a_configuration_error(up: Up, tmp_path: Path) -> None:
    done = trigger(up, tmp_path, CLEAN, auth="assay:wrong")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "PREFECT_API_AUTH_STRING" in done.stdout
    assert "assay:wrong" not in done.stdout + done.stderr
