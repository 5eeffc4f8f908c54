"""`assay up` where it cannot work says why at once; services that end are told apart from services that are unlucky."""

from __future__ import annotations

import socket
import subprocess
import sys
import time

import pytest
from filelock import FileLock

from accuracy_core.engines import processes
from accuracy_core.errors import InfrastructureError
from deployments import environment as settings
from deployments import up
from deployments.service import Service


def test_a_taken_port_is_a_configuration_error(tmp_path, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert up.main([f"--port={taken.getsockname()[1]}", f"--home={tmp_path}"]) == 3
    assert "is taken" in capsys.readouterr().err


def test_two_in_one_home_would_disturb_each_other(tmp_path, capsys):
    with FileLock(tmp_path / ".assay-up.lock"):
        assert up.main([f"--home={tmp_path}"]) == 3
    assert "another `assay up` runs" in capsys.readouterr().err


def test_a_home_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert up.main([f"--home={tmp_path / 'file'}"]) == 3
    assert "cannot be written" in capsys.readouterr().err


def test_a_service_and_everything_below_it_end_together(tmp_path):
    code = "import subprocess, sys, time; subprocess.Popen(['sleep', '600'], start_new_session=True); time.sleep(600)"
    service = Service("s", [sys.executable, "-c", code], {"ASSAY_TEST_TAG": str(tmp_path)}, tmp_path / "log")
    service.start()
    assert service.code() is None
    service.stop()
    tagged = [
        pid for pid in processes.all_pids() if processes.environment_of(pid).get("ASSAY_TEST_TAG") == str(tmp_path)
    ]
    assert [pid for pid in tagged if processes.is_alive(pid)] == []


def test_a_service_that_ends_again_and_again_is_given_up_with_the_end_of_its_log(tmp_path):
    service = Service("s", ["sh", "-c", "echo the reason; exit 7"], {}, tmp_path / "log")

    def restart_for_ever():
        while True:
            service.start()
            while service.code() is None:  # it ends by itself, after it has said why
                time.sleep(0.01)
            service.stop()

    with pytest.raises(InfrastructureError, match="again and again") as caught:
        restart_for_ever()
    assert "the reason" in caught.value.log_tail


def test_a_service_is_not_told_the_secrets_of_another(tmp_path, monkeypatch):
    monkeypatch.setenv("PREFECT_API_DATABASE_CONNECTION_URL", "postgresql+asyncpg://u:pa55@127.0.0.1/prefect")
    command = ["sh", "-c", "echo $OWN; env"]
    service = Service("s", command, {"OWN": "its own"}, tmp_path / "log", without=settings.SERVER_ONLY)
    service.start()
    while service.code() is None:
        time.sleep(0.01)
    service.stop()
    assert "its own" in (tmp_path / "log").read_text()
    assert "pa55" not in (tmp_path / "log").read_text()


def test_the_command_line_knows_the_same_options(tmp_path):
    words = ["--runs", "r", "--device-pool", "a", "--device-pool", "b", "--webhook", "http://127.0.0.1:9", "--auth"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", "up", "--home", str(tmp_path), "--port", port, "--once", *words],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 3, done.stdout + done.stderr
    assert f"port {port}" in done.stderr
