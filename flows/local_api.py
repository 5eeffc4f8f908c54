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
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import httpx

from accuracy_core.engines.supervised import SupervisedProcess, supervised_process
from accuracy_core.errors import InfrastructureError

STARTUP_TIMEOUT_S = 180.0
FLUSH_TIMEOUT_S = 5.0
REACH_TIMEOUT_S = 15.0


@contextlib.contextmanager
def local_api() -> Iterator[str]:
    """Yield the URL of the API: the configured one, or that of a temporary server on loopback.

    Raises InfrastructureError when the configured one cannot be reached, or when the temporary one does not come up,
    with the end of its log.
    """
    import prefect
    from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_ALLOW_EPHEMERAL_MODE, temporary_settings

    configured = PREFECT_API_URL.value()
    if configured:
        _check_reachable(configured)
        yield configured
        return
    port = _free_port()
    command = [
        sys.executable, "-m", "uvicorn", "--app-dir", str(Path(prefect.__file__).parent), "--factory",
        "prefect.server.api.server:create_app", "--host", "127.0.0.1", "--port", str(port), "--log-level", "error",
        "--lifespan", "on",
    ]  # fmt: skip
    env = {**os.environ, "PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
    url = f"http://127.0.0.1:{port}/api"
    with (
        tempfile.TemporaryFile() as log,
        supervised_process(command, env=env, log=log, grace_s=3.0) as server,
    ):
        _wait_healthy(server, url, log)
        with temporary_settings({PREFECT_API_URL: url, PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: False}):
            try:
                yield url
            finally:
                _flush()


def _check_reachable(url: str) -> None:
    try:
        httpx.get(f"{url.rstrip('/')}/health", timeout=REACH_TIMEOUT_S)
    except httpx.HTTPError as error:
        raise InfrastructureError(
            f"the Prefect API at {httpx.URL(url).copy_with(userinfo=b'')} cannot be reached: {type(error).__name__}",
            fix="start it with `prefect server start`, or unset PREFECT_API_URL to use a temporary one",
        ) from error


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
