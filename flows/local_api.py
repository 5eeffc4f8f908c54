"""A Prefect API for a run on a laptop: Prefect's own temporary server, made to end with the run however it ends.

Prefect starts such a server by itself, as a plain child: after a SIGKILL of the flow it would live on. Here it runs
under the same life-line as the engines.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import httpx

from accuracy_core.engines.supervised import SupervisedProcess, start_supervised
from accuracy_core.errors import ConfigurationError, InfrastructureError
from flows.api_credentials import api_credentials

STARTUP_TIMEOUT_S = 180.0
FLUSH_TIMEOUT_S = 5.0
REACH_TIMEOUT_S = 15.0
MOST_RESTARTS = 3
WATCH_S = 0.5


@contextlib.contextmanager
def local_api() -> Iterator[str]:
    """Yield the URL of the API: the configured one, or that of a temporary server on loopback.

    A temporary server that dies is started again on the same port: a run that is right must not end wrong for it.
    Raises InfrastructureError when the configured one cannot be reached, ConfigurationError when it refuses our auth
    string, InfrastructureError when the temporary one does not come up, with the end of its log.
    """
    from prefect.settings import (
        PREFECT_API_URL,
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
        PREFECT_SERVER_ALLOW_EPHEMERAL_MODE,
        temporary_settings,
    )

    configured = PREFECT_API_URL.value()
    if configured:
        _check_reachable(configured)
        yield configured
        return
    with _TemporaryServer() as server:
        ours = {
            PREFECT_API_URL: server.url,
            PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: False,
            PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,  # nobody listens, and each flow's end would wait a second for it
        }
        with temporary_settings(ours):
            try:
                yield server.url
            finally:
                _flush()


class _TemporaryServer:
    """Prefect's server under a life-line, and a thread that starts it again when it dies."""

    def __init__(self) -> None:
        import prefect

        port = _free_port()
        self.url = f"http://127.0.0.1:{port}/api"
        self._command = [
            sys.executable, "-m", "uvicorn", "--app-dir", str(Path(prefect.__file__).parent), "--factory",
            "prefect.server.api.server:create_app", "--host", "127.0.0.1", "--port", str(port),
            "--log-level", "error", "--lifespan", "on",
        ]  # fmt: skip
        self._env = {**os.environ, "PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1"}
        self._env["PREFECT__SERVER_FINAL"] = "1"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed on exit
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="temporary-prefect-api", daemon=True)
        self.process: SupervisedProcess | None = None

    def __enter__(self) -> _TemporaryServer:
        try:
            self.process = self._start()
            _wait_healthy(self.process, self.url, self._log)
        except BaseException:
            self.__exit__()
            raise
        self._watcher.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        if self.process is not None:
            self.process.cut()
        if self._watcher.is_alive():
            self._watcher.join()
        if self.process is not None:
            self.process.stop()
        self._log.close()

    def _start(self) -> SupervisedProcess:
        return start_supervised(self._command, env=self._env, log=self._log, grace_s=3.0)

    def _watch(self) -> None:
        for _ in range(MOST_RESTARTS):
            while self.process is not None and self.process.poll() is None:
                if self._over.wait(WATCH_S):
                    return
            if self._over.is_set():
                return
            with contextlib.suppress(Exception):  # the run finds out by itself that there is no API
                if self.process is not None:
                    self.process.stop()
                self.process = self._start()


def _check_reachable(url: str) -> None:
    shown = httpx.URL(url).copy_with(userinfo=b"")
    try:
        answer = httpx.get(f"{url.rstrip('/')}/admin/version", timeout=REACH_TIMEOUT_S, auth=api_credentials())
    except httpx.HTTPError as error:
        raise InfrastructureError(
            f"the Prefect API at {shown} cannot be reached: {type(error).__name__}",
            fix="start it with `prefect server start`, or unset PREFECT_API_URL to use a temporary one",
        ) from error
    if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise ConfigurationError(
            f"the Prefect API at {shown} refuses us: {answer.status_code}",
            fix="set PREFECT_API_AUTH_STRING to the server's auth string",
        )


def _flush() -> None:
    """Logs and events on their way must arrive before the server goes, or the process waits for it at its end."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    APILogWorker.drain_all(timeout=FLUSH_TIMEOUT_S)
    EventsWorker.drain_all(timeout=FLUSH_TIMEOUT_S)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_healthy(server: SupervisedProcess, url: str, log: IO[bytes]) -> None:
    deadline = time.monotonic() + STARTUP_TIMEOUT_S
    with httpx.Client(timeout=5, trust_env=False) as client:
        while server.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError):
                if client.get(f"{url}/health").status_code == httpx.codes.OK:
                    return
            time.sleep(0.1)
    log.seek(0)
    text = log.read().decode("utf-8", "replace")
    raise InfrastructureError(
        "the temporary Prefect API did not come up",
        fix="look at the log, or start one with `prefect server start` and set PREFECT_API_URL",
        log_tail="\n".join(text.splitlines()[-20:]),
    )
