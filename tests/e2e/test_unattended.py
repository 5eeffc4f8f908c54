"""Runs on real Prefect workers, with a light engine: exclusive devices, crashes, cancellation, a server that dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.orchestration.fleet import ROOT, Fleet, Host, fake_python
from benchmarks.orchestration.intervals import overlaps, read_intervals

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
POOL = "device-pool"
TIMEOUT_S = 600


class Light:
    """The fleet, and parameters of runs whose engine is the light one; each a target of its own."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self.fleet, self.folder = fleet, folder
        self.host: Host = fleet.hosts[POOL]
        self.log = folder / "engines.jsonl"
        self._python = fake_python(folder)
        self._count = 0

    def parameters(self, mode: str = "", seconds: float = 1, **engine: Any) -> dict[str, Any]:
        self._count += 1
        env = {"FAKE_MODE": mode, "FAKE_SECONDS": str(seconds), "FAKE_LOG": str(self.log)}
        return {
            "engine": {"model": "embedded", "python": self._python, "env": env, "seed": self._count, **engine},
            "evaluation": {"tasks": ["assay_arith"], "limit": 2, "num_concurrent": 1},
            "thresholds": {"assay_arith/exact_match,strict-match": 0.0},
            "stages": ["evaluate", "task_analysis"],
        }

    def start(self, parameters: dict[str, Any], pool: str = POOL) -> str:
        return self.fleet.create("accuracy-debugger/adhoc", parameters=parameters, placement={"device_pool": pool})

    def hanging(self) -> str:
        """A run whose engine is at work and will not end."""
        run_id = self.start(self.parameters("hang"))
        assert self.fleet.until(self.host.engine, TIMEOUT_S, poll_s=0.5), self.fleet.run(run_id)["state"]
        return run_id

    def is_clean(self) -> bool:
        """No engine left and no core held, after at most 30 s."""
        return self.fleet.until(lambda: not self.host.engine_processes() and not self.host.cores_held(), 30)

    def end(self, run_id: str) -> tuple[str, str]:
        state = self.fleet.wait_final(run_id, TIMEOUT_S)["state"]
        return state["name"], state["message"] or ""


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Light]:
    folder = tmp_path_factory.mktemp("fleet")
    with Fleet(folder, ["cpu-pool", POOL]) as fleet:
        yield Light(fleet, folder)


def test_two_parents_and_a_laptop_run_never_use_the_device_at_once(light: Light) -> None:
    runs = [light.start(light.parameters(seconds=3)) for _ in range(2)]
    config = light.folder / "laptop.json"
    config.write_text(json.dumps(light.parameters(seconds=3)))
    api = f"http://127.0.0.1:{light.fleet.port}/api"
    environment = {**os.environ, **light.host.environment, "COLUMNS": "160", "PREFECT_API_URL": api}
    laptop = subprocess.run(
        [sys.executable, "-m", "flows.cli", "run", "--config", str(config), "--output", str(light.folder / "laptop")],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert laptop.returncode == 0, laptop.stdout + laptop.stderr
    for run_id in runs:
        assert light.end(run_id)[0] == "Completed", light.end(run_id)
        assert [child["name"] for child in light.fleet.children(run_id)] == ["embedded-cpu-assay_arith"]
    intervals = read_intervals(light.log)
    assert len(intervals) == 3
    assert len({interval.core for interval in intervals}) == 1
    assert overlaps(intervals) == []
    assert light.is_clean()


def test_cancelling_a_parent_ends_its_child_and_frees_the_device(light: Light) -> None:
    run_id = light.hanging()
    light.fleet.cancel(run_id)
    assert light.end(run_id)[0] == "Cancelled"
    assert light.is_clean()
    (child,) = light.fleet.children(run_id)
    assert light.end(child["id"])[0] == "Cancelled"


def test_a_parent_that_is_killed_takes_its_child_with_it(light: Light) -> None:
    run_id = light.hanging()
    os.kill(int(light.fleet.run(run_id)["infrastructure_pid"]), signal.SIGKILL)
    assert light.end(run_id)[0] == "Crashed"
    (child,) = light.fleet.children(run_id)
    assert light.end(child["id"])[0] == "Cancelled"
    assert light.is_clean()


def test_a_child_that_is_killed_crashes_its_parent_as_infrastructure(light: Light) -> None:
    run_id = light.hanging()
    (child,) = light.fleet.children(run_id)
    os.kill(int(light.fleet.run(child["id"])["infrastructure_pid"]), signal.SIGKILL)
    name, message = light.end(run_id)
    assert name == "Crashed"
    assert "device-eval ended as Crashed" in message
    assert light.is_clean()


def test_what_only_the_device_host_knows_comes_back_as_a_configuration_error(light: Light) -> None:
    run_id = light.start(light.parameters(platform="neuron", tensor_parallel_size=2))
    name, message = light.end(run_id)
    assert name == "ConfigurationFailed", message
    assert "2 neuron cores needed, this host has 0" in message
    (child,) = light.fleet.children(run_id)
    assert light.end(child["id"])[0] == "ConfigurationFailed"
    last = "Engine execution exited"  # Prefect's word on every run that failed; logs arrive in batches
    assert light.fleet.until(lambda: any(last in line for line in light.fleet.logs(run_id)), 60, poll_s=1)
    log = "\n".join(light.fleet.logs(run_id))
    assert "2 neuron cores needed" in log
    assert "cannot be resolved into an exception" not in log


def test_a_server_that_dies_in_mid_run_changes_no_outcome(light: Light) -> None:
    run_id = light.start(light.parameters(seconds=5))
    assert light.fleet.until(light.host.engine, TIMEOUT_S, poll_s=0.5)
    server = light.fleet.stack.server
    os.kill(server.pid, signal.SIGKILL)
    assert light.fleet.until(lambda: server.code() is not None, 30)
    server.stop()
    threading.Event().wait(5)
    server.start()
    light.fleet.stack._wait_healthy()
    assert light.end(run_id)[0] == "Completed", light.end(run_id)
    assert light.is_clean()


def test_a_pool_without_a_worker_is_waited_for_in_sight(light: Light) -> None:
    from deployments.bootstrap import connected, ensure_deployments, ensure_pools

    with light.fleet.settings(), connected() as client:
        ensure_pools(client, ["nobody"])
        ensure_deployments(client, ["nobody"])
    run_id = light.start(light.parameters(), pool="nobody")
    assert light.fleet.until(
        lambda: any("no worker polls it" in line for line in light.fleet.logs(run_id)), 240, poll_s=2
    ), light.fleet.logs(run_id)
    assert light.fleet.run(run_id)["state"]["name"] == "Running"
    light.fleet.cancel(run_id)
    assert light.end(run_id)[0] == "Cancelled"


def test_a_pool_that_does_not_exist_is_a_configuration_error(light: Light) -> None:
    name, message = light.end(light.start(light.parameters(), pool="no-such-pool"))
    assert name == "ConfigurationFailed"
    assert "no-such-pool" in message


def test_kills_leave_nothing_and_the_next_run_starts(tmp_path: Path) -> None:
    cells = (
        "flow-KILL-eval,flow-TERM-prompt,worker-KILL-prompt,worker-TERM-eval,supervisor-KILL-prompt,engine-KILL-prompt"
    )
    done = subprocess.run(
        [sys.executable, "benchmarks/kill_matrix.py", "--cells", cells], cwd=ROOT, capture_output=True, text=True,
        timeout=1500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 of 6 as they must be" in done.stdout
