"""The server's life cycle, with a fake in the place of vLLM."""

from __future__ import annotations

import os
import signal
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from accuracy_core.engines import processes
from accuracy_core.engines.cores import cores_free, lease_cores
from accuracy_core.engines.server import RunningServer, free_port, start_server
from accuracy_core.errors import (
    AssayError,
    ConfigurationError,
    EngineArgumentError,
    EngineDiedError,
    EngineStartError,
)
from accuracy_core.schemas import EngineSpec, FaultSpec, Platform

pytestmark = pytest.mark.usefixtures("own_locks")

MakeSpec = Callable[..., EngineSpec]


def start(spec: EngineSpec, tmp_path: Path, **options: float) -> RunningServer:
    return start_server(spec, None, log_path=tmp_path / "logs" / "server.log", grace_s=1, **options)  # type: ignore[arg-type]


def test_start_and_stop_as_separate_calls(fake_spec: MakeSpec, tmp_path: Path) -> None:
    with lease_cores(fake_spec(), timeout_s=0) as lease:
        server = start_server(fake_spec(), lease, log_path=tmp_path / "server.log", served_model_name="tiny")
        assert server.alive
        server.check_alive()
        assert server.model_name == "tiny"
        assert urllib.request.urlopen(f"{server.base_url}/health").status == 200
        mark = server._process.mark
        assert len(processes.marked(mark)) == 3
        assert lease.other_users()
        server.stop()
        assert processes.marked(mark) == []
        assert lease.other_users() == []
        assert not server.alive
        server.stop()
    assert cores_free(Platform.CPU)


def test_it_listens_on_loopback_with_the_fields_of_the_spec(fake_spec: MakeSpec, tmp_path: Path) -> None:
    with start(fake_spec(max_model_len=64), tmp_path) as server:
        command = " ".join(server.command)
        assert "-m vllm.entrypoints.openai.api_server" in command
        assert f"--host 127.0.0.1 --port {server.port}" in command
        assert "--max-model-len=64" in command
        assert server._scratch is not None
        assert server._scratch.path.is_dir()
    assert not server._scratch.path.exists()


def test_a_stubborn_server_is_killed(fake_spec: MakeSpec, tmp_path: Path) -> None:
    server = start(fake_spec("stubborn"), tmp_path)
    server.stop()
    assert processes.marked(server._process.mark) == []


def test_death_is_noticed_and_stop_still_works(fake_spec: MakeSpec, tmp_path: Path) -> None:
    with start(fake_spec(), tmp_path) as server:
        os.kill(server.pid, signal.SIGKILL)
        server._process.wait(10)
        assert not server.alive
        with pytest.raises(EngineDiedError, match="exit code 137"):
            server.check_alive()
    assert processes.marked(server._process.mark) == []


def test_a_killed_supervisor_is_noticed_and_nothing_is_left(fake_spec: MakeSpec, tmp_path: Path) -> None:
    with start(fake_spec(), tmp_path) as server:
        os.kill(server.supervisor_pid, signal.SIGKILL)
        server._process.wait(10)
        assert not server.alive
    assert processes.marked(server._process.mark) == []


@pytest.mark.parametrize(
    ("mode", "error", "words"),
    [
        ("refuse", EngineArgumentError, "unrecognized arguments: --no-such-thing"),
        ("bad-model", EngineArgumentError, "valid model identifier"),
        ("memory", EngineStartError, "out of memory"),
        ("die", EngineStartError, "the last words"),
    ],
)
def test_failed_start_is_typed_and_shows_the_logs_end(
    fake_spec: MakeSpec, tmp_path: Path, mode: str, error: type[AssayError], words: str
) -> None:
    with pytest.raises(error) as caught:
        start(fake_spec(mode), tmp_path)
    assert words in str(caught.value)
    assert "what to do" in str(caught.value)


def test_a_free_port_that_somebody_else_took_is_replaced(
    fake_spec: MakeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake says once that its port is in use, as vLLM does when it was taken while it was importing."""
    flag = tmp_path / "port-was-taken"
    spec = fake_spec("port-taken-once")
    spec = spec.model_copy(update={"env": {**spec.env, "FLAG": str(flag)}})
    with start(spec, tmp_path) as server:
        assert server.alive
    assert flag.exists()
    flag.unlink()
    with pytest.raises(EngineArgumentError, match="port"):
        start(spec, tmp_path, port=free_port())


def test_start_up_time_out(fake_spec: MakeSpec, tmp_path: Path) -> None:
    with pytest.raises(EngineStartError, match="not up after 1 s"):
        start(fake_spec("never"), tmp_path, startup_timeout_s=1)


def test_taken_port_is_found_before_anything_starts(fake_spec: MakeSpec, tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        with pytest.raises(EngineArgumentError, match="is taken"):
            start(fake_spec(), tmp_path, port=holder.getsockname()[1])
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "/no/such/model"}, "does not exist"),
        ({"fault": FaultSpec(name="mlp-scal")}, "unknown fault"),
        ({"fault": FaultSpec(name="mlp-scale", layer=99)}, "the model has 4 layers"),
        ({"python": "/no/such/python"}, "no executable file"),
    ],
)
def test_wrong_configuration_is_found_before_anything_starts(
    fake_spec: MakeSpec, tmp_path: Path, change: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        start(fake_spec().model_copy(update=change), tmp_path)
    assert not (tmp_path / "logs").exists()
