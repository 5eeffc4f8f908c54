"""vLLM's OpenAI server as the target of a task evaluation: started, watched, and ended so that nothing is left."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accuracy_core.engines import processes
from accuracy_core.engines.arguments import server_flags
from accuracy_core.engines.checkpoint import effective_config, overridden_generation_defaults, resolve_checkpoint
from accuracy_core.engines.cores import CoreLease
from accuracy_core.engines.environment import engine_environment
from accuracy_core.engines.failures import start_error
from accuracy_core.engines.injected import injected_fault
from accuracy_core.engines.interpreter import check_interpreter, find_interpreter
from accuracy_core.engines.load_report import load_report_environment
from accuracy_core.engines.logs import FIXES, FailureKind, classify, log_tail
from accuracy_core.engines.scratch import Scratch
from accuracy_core.engines.supervised import DEFAULT_GRACE_S, SupervisedProcess, start_supervised
from accuracy_core.errors import EngineArgumentError, EngineDiedError, EngineStartError, InfrastructureError
from accuracy_core.schemas import EngineSpec

HOST = "127.0.0.1"
_POLL_S = 0.2
_PORT_TRIES = 3
_HEALTH_TIMEOUT_S = 5.0
_CORES_TIMEOUT_S = 5.0


class RunningServer:
    """A server that answers. A context manager; `stop` may be called any number of times, from another task as well."""

    def __init__(
        self,
        process: SupervisedProcess,
        lease: CoreLease | None,
        *,
        port: int,
        model_name: str,
        log_path: Path,
        scratch: Scratch | None,
        overridden_defaults: dict[str, Any],
        command: Sequence[str],
    ) -> None:
        self.port = port
        self.model_name = model_name
        self.log_path = log_path
        self.overridden_defaults = overridden_defaults
        self.command = tuple(command)
        self._process = process
        self._lease = lease
        self._scratch = scratch
        self._stopped = False

    @property
    def base_url(self) -> str:
        """`http://127.0.0.1:PORT`, without `/v1`."""
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """Pid of the API server; its supervisor is the parent."""
        return self._process.pid

    @property
    def supervisor_pid(self) -> int:
        return self._process.supervisor.pid

    @property
    def alive(self) -> bool:
        """True while the server's process runs."""
        return not self._stopped and self._process.poll() is None

    def check_alive(self) -> None:
        """Raise EngineDiedError, with the end of the log, when the server is gone."""
        code = self._process.poll()
        if code is not None:
            raise EngineDiedError(
                f"the server ended with exit code {code}", fix="see the log; a retry may help", log_tail=self.log_tail()
            )

    def log_tail(self, lines: int = 30) -> str:
        """Last lines of the server's log."""
        return log_tail(self.log_path, lines)

    def stop(self) -> None:
        """End the server's whole tree: SIGTERM, at most 10 s, SIGKILL to what is left.

        Returns only when nothing of it is alive and no other process holds its cores; raises InfrastructureError when
        that cannot be reached. The cores stay leased to this process until the lease is released.
        """
        self._process.cut()
        if self._stopped:
            return
        self._process.stop()
        self._stopped = True
        if self._scratch is not None:
            self._scratch.remove()
        _check_cores(self._lease)

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.cut()
        self.stop()


def start_server(
    spec: EngineSpec,
    lease: CoreLease | None,
    *,
    log_path: Path,
    port: int | None = None,
    startup_timeout_s: float = 600,
    scratch: Path | None = None,
    served_model_name: str | None = None,
    grace_s: float = DEFAULT_GRACE_S,
) -> RunningServer:
    """Start `python -m vllm.entrypoints.openai.api_server` for `spec` on the leased cores; return when /health answers.

    The log goes to `log_path` (overwritten). `port` None takes a free one. Nothing is left running when this raises:

    - EngineArgumentError: the port is taken, or the server refused an argument, the model or the fault;
    - ConfigurationError: no such model or fault, no interpreter with vLLM;
    - EngineStartError: it ended for another reason, ran out of memory, or was not up within `startup_timeout_s`.

    The last lines of the server's log are in the error.
    """
    model = resolve_checkpoint(spec)
    config = effective_config(spec, model)
    if spec.fault is not None:
        injected_fault(spec, config)
    python = find_interpreter(spec)
    check_interpreter(python)
    name = served_model_name or spec.model
    tries = _PORT_TRIES if port is None else 1
    for attempt in range(tries):
        chosen = free_port() if port is None else port
        check_port(chosen)
        flags = server_flags(spec, model, host=HOST, port=chosen, served_model_name=name, config=config)
        command = [str(python), "-m", "vllm.entrypoints.openai.api_server", *flags]
        server = _launch(spec, lease, command, python, model, log_path, scratch, grace_s, port=chosen, model_name=name)
        try:
            _wait_until_healthy(server, startup_timeout_s)
            return server
        except EngineArgumentError as error:
            server.stop()
            # somebody took the free port while vLLM was importing: not the user's mistake
            if classify(error.log_tail) is not FailureKind.PORT or attempt == tries - 1:
                raise
        except BaseException:
            server.stop()
            raise
    raise AssertionError("unreachable")


def _launch(
    spec: EngineSpec,
    lease: CoreLease | None,
    command: Sequence[str],
    python: Path,
    model: str,
    log_path: Path,
    scratch: Path | None,
    grace_s: float,
    *,
    port: int,
    model_name: str,
) -> RunningServer:
    """Start the supervised server process; does not wait for it."""
    own_scratch = Scratch(0) if scratch is None else None
    try:
        folder = own_scratch.path if own_scratch is not None else Path(scratch or ".").absolute()
        environment = engine_environment(spec, lease, python=python, scratch=folder, model=model)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        environment |= load_report_environment(log_path)
        with log_path.open("wb") as log:
            process = start_supervised(
                command,
                env=environment,
                log=log,
                lock_fds=lease.fds if lease else (),
                grace_s=grace_s,
                remove=own_scratch.path if own_scratch else None,
            )
    except BaseException:
        if own_scratch is not None:
            own_scratch.remove()
        raise
    return RunningServer(
        process,
        lease,
        port=port,
        model_name=model_name,
        log_path=log_path,
        scratch=own_scratch,
        overridden_defaults=overridden_generation_defaults(model),
        command=command,
    )


def free_port() -> int:
    """A port of the loopback interface that is free now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def check_port(port: int) -> None:
    """Raise EngineArgumentError when `port` cannot be bound as the server will bind it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise EngineArgumentError(
                f"port {port} on {HOST} is taken: {error}", fix=FIXES[FailureKind.PORT]
            ) from error


def _wait_until_healthy(server: RunningServer, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        code = server._process.poll()
        if code is not None:
            tail = server.log_tail(60)
            raise start_error(f"the server ended during start-up with exit code {code}", tail)
        if _healthy(server.port):
            return
        if time.monotonic() >= deadline:
            raise EngineStartError(
                f"the server was not up after {timeout_s:.0f} s",
                fix="raise the start-up time-out; compiling for an accelerator takes minutes",
                log_tail=server.log_tail(60),
            )
        time.sleep(_POLL_S)


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=_HEALTH_TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _check_cores(lease: CoreLease | None) -> None:
    if lease is None:
        return
    deadline = time.monotonic() + _CORES_TIMEOUT_S
    while users := lease.other_users():
        if time.monotonic() >= deadline:
            raise InfrastructureError(
                f"the engine was ended, but {lease.platform.value} cores {list(lease.cores)} are still held by {users}",
                fix="end those processes",
            )
        processes.wait_gone(users, _POLL_S)
