"""`assay trigger` against a real Prefect server and a served deployment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
NAME = "ci"
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
RESULTS = ["combined_report.html", "junit.xml", "report.json"]


@pytest.fixture(scope="module")
def api() -> Iterator[str]:
    from flows.local_api import local_api

    with local_api() as url:
        yield url


@pytest.fixture(scope="module")
def deployment(api: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = (tmp_path_factory.mktemp("serve") / "log").open("w+")
    environment = {**os.environ, "PREFECT_API_URL": api, "PREFECT_RUNNER_POLL_FREQUENCY": "1"}
    command = [sys.executable, "-m", "tests.remote.served_flow", NAME]
    process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=environment)
    try:
        deadline = time.monotonic() + 180
        while _get(f"{api}/deployments/name/accuracy-debugger/{NAME}").status_code != 200:
            assert process.poll() is None, Path(log.name).read_text()
            assert time.monotonic() < deadline, Path(log.name).read_text()
            time.sleep(0.5)
        yield NAME
    finally:
        process.terminate()
        process.wait()
        log.close()


def _get(url: str) -> httpx.Response:
    return httpx.get(url, timeout=60)


def _runs(api: str) -> Any:
    return httpx.post(f"{api}/flow_runs/count", json={}, timeout=60).json()


@pytest.fixture
def trigger(api: str, deployment: str, tmp_path: Path) -> Any:
    from flows.cli import app

    def call(*arguments: str, name: str = deployment) -> Any:
        fetched = ["--fetch", str(tmp_path / "fetched")]
        return CliRunner().invoke(app, ["trigger", name, "--api", api, *fetched, *arguments])

    return call


def params(**values: Any) -> str:
    return json.dumps(values)


@pytest.mark.parametrize(("ending", "code"), [("pass", 0), ("fail", 2), ("configuration", 3), ("infrastructure", 1)])
def test_exit_code_link_state_and_results(trigger: Any, tmp_path: Path, api: str, ending: str, code: int) -> None:
    given = params(parameters={"output_dir": str(tmp_path / "run")}, ending=ending)
    result = trigger("--params", given, "--wait")
    assert result.exit_code == code, result.output
    assert f"{api.removesuffix('/api')}/runs/flow-run/" in result.output
    last = {"pass": "Completed: ACCURACY", "fail": "AccuracyFailed: ACCURACY", "configuration": "ConfigurationFailed",
            "infrastructure": "Crashed: infra"}[ending]  # fmt: skip
    assert last in result.output
    assert sorted(path.name for path in (tmp_path / "fetched").iterdir()) == RESULTS
    assert (tmp_path / "fetched" / "junit.xml").read_text() == f"junit.xml of {ending}"


def test_a_run_that_takes_too_long_is_cancelled(trigger: Any, api: str) -> None:
    result = trigger("--params", params(ending="never"), "--wait", "--timeout", "6")
    assert result.exit_code == 4, result.output
    assert "not over after 6 s" in result.output
    run_id = result.output.split("/runs/flow-run/")[1].split()[0]
    assert _get(f"{api}/flow_runs/{run_id}").json()["state"]["type"] in ("CANCELLED", "CANCELLING")


def test_the_same_key_means_the_same_run(trigger: Any) -> None:
    first, again, other = (trigger("--idempotency-key", key) for key in ("pipeline-7", "pipeline-7", "pipeline-8"))
    links = [result.output.split("/runs/flow-run/")[1].split()[0] for result in (first, again, other)]
    assert links[0] == links[1] != links[2]
    assert {result.exit_code for result in (first, again, other)} == {0}


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("cj", (), "did you mean accuracy-debugger/ci"),
        ("nothing-like-it/at-all", (), "there are: accuracy-debugger/ci"),
        (NAME, ("--params", '{"engine": {"modell": "m"}}'), "modell"),
        (NAME, ("--params", '{"engine": {"modle": "m"}}'), "did you mean model"),
        (NAME, ("--params", '{"parameters": {"engine": {"model": "m", "dtype": "int3"}}}'), "refuses the parameters"),
        (NAME, ("--params", "{"), "cannot be read"),
        (NAME, ("--params", "[1]"), "no mapping"),
        (NAME, ("--params", "@/no/such/file"), "cannot be read"),
        (NAME, ("--timeout", "3"), "add --wait"),
    ],
)
def test_mistakes_are_said_and_start_nothing(trigger: Any, api: str, name: str, arguments: Any, said: str) -> None:
    before = _runs(api)
    result = trigger(*arguments, name=name)
    assert result.exit_code == 3, result.output
    assert said in " ".join(result.output.split())
    assert _runs(api) == before


def test_parameters_from_a_yaml_file(trigger: Any, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("ending: fail\n")
    assert trigger("--params", f"@{file}", "--wait").exit_code == 2


def test_results_on_another_machine_do_not_change_the_verdict(trigger: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    started = trigger("--params", params(parameters={"output_dir": str(run)}), "--wait", "--no-fetch")
    assert started.exit_code == 0
    assert not (tmp_path / "fetched").exists()
    for name in RESULTS:
        (run / name).unlink()
    run.rmdir()
    key = ["--idempotency-key", "gone"]
    result = trigger("--params", params(ending="fail"), "--wait", *key)
    assert result.exit_code == 2
    assert "has written no report" in result.output


@pytest.fixture
def script(api: str, deployment: str) -> Any:
    """The example for plain curl."""

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(ROOT / "examples" / "ci" / "trigger.sh"), *arguments],
            env={**os.environ, "PREFECT_API_URL": api}, text=True, capture_output=True, timeout=300, check=False,
        )  # fmt: skip

    return call


@needs_curl
@pytest.mark.parametrize(("ending", "code"), [("pass", 0), ("fail", 2)])
def test_the_curl_example_says_the_same(script: Any, ending: str, code: int) -> None:
    result = script(f"accuracy-debugger/{NAME}", params(ending=ending))
    assert result.returncode == code, result.stdout + result.stderr
    assert "/runs/flow-run/" in result.stdout


@needs_curl
def test_the_curl_example_cancels_and_refuses(script: Any) -> None:
    late = script(f"accuracy-debugger/{NAME}", params(ending="never"), "key-late", "5")
    assert late.returncode == 4, late.stdout + late.stderr
    for wrong in ((f"accuracy-debugger/{NAME}", '{"ending": "typo"}'), ("accuracy-debugger/none", "{}"),
                  (f"accuracy-debugger/{NAME}", "{")):  # fmt: skip
        assert script(*wrong).returncode == 3
