"""The documented set-up with Postgres below Prefect's server, for real. Needs Postgres' programs, no running server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from accuracy_core.engines import processes
from benchmarks.orchestration.fleet import Fleet, fake_python
from tests.e2e.postgres import programs, running_postgres

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(programs() is None, reason="no Postgres here"),
]
POOL = "device-pool"
TIMEOUT_S = 300
SETTING = "PREFECT_API_DATABASE_CONNECTION_URL"


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """Server and workers, after the documented `prefect server database upgrade`."""
    folder = programs()
    assert folder is not None
    with running_postgres(folder) as url:
        monkeypatch.setenv(SETTING, url)
        upgrade = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y"]
        subprocess.run(upgrade, env={**os.environ, "PREFECT_HOME": str(tmp_path / "home")}, check=True)
        with Fleet(tmp_path, ["cpu-pool", POOL]) as started:
            yield started


def test_a_run_on_postgres_outlives_a_restart_of_the_server(fleet: Fleet) -> None:
    from deployments.automations import ensure_automations
    from deployments.bootstrap import connected, ensure_deployments, ensure_pools

    with fleet.settings(), connected() as client:  # the second time: the fleet has made them already
        ensure_pools(client, [POOL])
        ensure_deployments(client, [POOL])
        ensure_automations(client, None)
    parameters = {
        "engine": {"model": "embedded", "python": fake_python(fleet.folder), "env": {"FAKE_SECONDS": "4"}},
        "evaluation": {"tasks": ["assay_arith"], "limit": 2, "num_concurrent": 1},
        "thresholds": {"assay_arith/exact_match,strict-match": 0.0},
        "stages": ["evaluate", "task_analysis"],
    }
    run_id = fleet.create("accuracy-debugger/adhoc", parameters=parameters, placement={"device_pool": POOL})
    assert fleet.until(fleet.hosts[POOL].engine, TIMEOUT_S, poll_s=0.5), fleet.run(run_id)["state"]
    server = fleet.stack.server
    os.kill(server.pid, signal.SIGKILL)
    assert fleet.until(lambda: server.code() is not None, 30)
    server.stop()
    threading.Event().wait(2)
    server.start()
    fleet.stack._wait_healthy()
    state = fleet.wait_final(run_id, TIMEOUT_S)["state"]
    assert state["name"] == "Completed", state
    assert not list((fleet.folder / "home").glob("*.db*")), "everything is in Postgres"
    for host in fleet.hosts.values():
        environment = processes.environment_of(host.service.pid)
        assert "PREFECT_API_URL" in environment
        assert SETTING not in environment, "the database's password is the server's own"
