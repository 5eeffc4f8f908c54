"""`assay up`, also `python -m deployments.up`: server, pools, workers and deployments on this machine.

Everything is on loopback and ends with this process, by Ctrl-C or however it ends. A server or a worker that dies is
started again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from accuracy_core.engines.server import check_port
from accuracy_core.errors import AssayError, ConfigurationError, InfrastructureError
from accuracy_core.outcome import exit_code
from deployments import environment as settings
from deployments.service import Service

DEFAULT_HOME = "~/.assay/prefect"
DEFAULT_PORT = 4200
START_TIMEOUT_S = 180.0
_POLL_S = 0.5
_PREFECT = [sys.executable, "-m", "prefect"]


class Stack:
    """The server and its workers. `start` brings them up, `watch` keeps them up, `stop` ends them."""

    def __init__(self, home: Path, port: int, auth: str | None, runs: str, device_pools: Sequence[str]) -> None:
        self.home, self.port, self.auth = home, port, auth
        self.device_pools = list(device_pools)
        self._runs = runs
        self._began = time.monotonic()
        self.server = Service(
            "server",
            [*_PREFECT, "server", "start", "--host", settings.HOST, "--port", str(port)],
            settings.server_settings(home, port, auth),
            home / "logs" / "server.log",
        )
        self.workers: dict[str, Service] = {}

    def start(self, webhook: str | None) -> None:
        """Errors: ConfigurationError, InfrastructureError with the end of the log of whatever did not come up."""
        os.environ.update(settings.client_settings(self.home, self.port, self.auth))
        self.server.start()
        # while it comes up: imports take seconds
        from deployments.bootstrap import CPU_POOL, connected, ensure_deployments, ensure_pools
        from deployments.declared import declared

        for one in declared(self.device_pools):
            one.flow()
        self._wait_healthy()
        self.say("server is up")
        with connected() as client:
            ensure_pools(client, self.device_pools)
            for pool in (CPU_POOL, *self.device_pools):
                self.workers[pool] = self._worker(pool)
                self._start_worker(pool)
            ensure_deployments(client, self.device_pools)
            from deployments.automations import ensure_automations

            ensure_automations(client, webhook)
            self.say("pools, deployments and automations are there")
            self._wait_ready(client)

    def watch(self) -> None:
        """Until a signal comes: start again what has ended. Raises InfrastructureError when that does not help."""
        while True:
            time.sleep(_POLL_S)
            if self.server.code() is not None:
                self.say(f"the server ended with {self.server.code()}: starting it again")
                self.server.stop()
                self.server.start()
                self._wait_healthy()
                self.say("server is up again")
            for pool, worker in self.workers.items():
                if worker.code() is not None:
                    self.say(f"{worker.name} ended with {worker.code()}: starting it again")
                    worker.stop()
                    self._start_worker(pool)

    def stop(self) -> None:
        """Workers and their runs first; then the server is told what is no longer running; then the server."""
        for worker in self.workers.values():
            worker.cut()
        for worker in self.workers.values():
            worker.stop()
        if self.workers and self.server.code() is None:
            with contextlib.suppress(Exception):  # the next start does it as well
                for pool in self.workers:
                    self._reconcile(pool)
        self.server.stop()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began:5.1f} s] {text}", flush=True)

    def _worker(self, pool: str) -> Service:
        from deployments.reconcile import worker_name

        return Service(
            f"worker of {pool}",
            [*_PREFECT, "worker", "start", "--pool", pool, "--type", "process", "--name", worker_name(pool)],
            settings.worker_settings(self.home, self.port, self.auth, self._runs),
            self.home / "logs" / f"worker-{pool}.log",
            without=settings.SERVER_ONLY,
        )

    def _start_worker(self, pool: str) -> None:
        self._reconcile(pool)
        self.workers[pool].start()

    def _reconcile(self, pool: str) -> None:
        from deployments.bootstrap import connected
        from deployments.reconcile import reconcile, worker_name

        with connected() as client:
            for line in reconcile(client, pool, worker_name(pool)):
                self.say(f"left over from before: {line}")

    def _wait_healthy(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.server.code() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                url = f"http://{settings.HOST}:{self.port}/api/health"
                with urllib.request.urlopen(url, timeout=5) as answer:
                    if answer.status == 200:
                        return
            time.sleep(0.1)
        raise InfrastructureError(
            "the Prefect server did not come up", fix=f"see {self.server.log}", log_tail=self.server.tail()
        )

    def _wait_ready(self, client: Any) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        for pool, worker in self.workers.items():
            while client.read_work_pool(pool).status.value != "READY":
                if worker.code() is not None or time.monotonic() >= deadline:
                    raise InfrastructureError(
                        f"the {worker.name} did not come up", fix=f"see {worker.log}", log_tail=worker.tail()
                    )
                time.sleep(0.2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit code: 0 after Ctrl-C."""
    options = _parse(arguments)
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, _as_interrupt)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts us in the background ignores it
    home = Path(options.home or os.environ.get("PREFECT_HOME") or DEFAULT_HOME).expanduser().absolute()
    try:
        with _only_one(home):
            return _run(options, home)
    except AssayError as error:
        print(error, file=sys.stderr)
        return exit_code(error.outcome, None)
    except KeyboardInterrupt:
        return 0


def _run(options: argparse.Namespace, home: Path) -> int:
    check_port(options.port)
    auth = settings.auth_string(home, make=options.auth)
    runs = options.runs or os.environ.get("ASSAY_RUNS_DIR") or "runs"
    runs = runs if "://" in runs else str(Path(runs).expanduser().absolute())  # workers run elsewhere
    stack = Stack(home, options.port, auth, runs, options.device_pool or ["device-pool"])
    try:
        stack.start(options.webhook)
        _tell(stack, runs)
        if options.once:
            return 0
        stack.watch()
    except KeyboardInterrupt:
        stack.say("stopping")
    finally:
        stack.stop()
    stack.say("everything is stopped")
    return 0


def _tell(stack: Stack, runs: str) -> None:
    stack.say("ready. Ctrl-C stops everything.")
    url = f"http://{settings.HOST}:{stack.port}"
    print(f"  UI       {url}\n  API      {url}/api  (set PREFECT_API_URL to it)\n  runs     {runs}")
    print(f"  logs     {stack.home / 'logs'}\n  pools    {', '.join(stack.workers)}")
    if stack.auth:
        print(f"  auth     on; clients need {settings.AUTH}, see {stack.home}")
    sys.stdout.flush()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="assay up", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help=f"port of the server (default {DEFAULT_PORT})")
    parser.add_argument("--home", help=f"database and logs (default $PREFECT_HOME, else {DEFAULT_HOME})")
    parser.add_argument("--runs", help="where run directories go (default $ASSAY_RUNS_DIR, else ./runs)")
    parser.add_argument("--device-pool", action="append", help="pool with a worker here; may be repeated")
    parser.add_argument("--auth", action="store_true", help="make an auth string, kept under --home")
    parser.add_argument("--webhook", help="URL that is called when a run fails or crashes")
    parser.add_argument("--once", action="store_true", help="stop again as soon as everything is up")
    return parser.parse_args(arguments)


@contextlib.contextmanager
def _only_one(home: Path) -> Any:
    """One `assay up` per home: two servers on one database would disturb each other."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = FileLock(home / ".assay-up.lock", timeout=0)
        lock.acquire()
    except Timeout as error:
        raise ConfigurationError(f"another `assay up` runs in {home}", fix="stop it, or give another --home") from error
    except OSError as error:
        raise ConfigurationError(f"{home} cannot be written: {error}", fix="give another --home") from error
    try:
        yield
    finally:
        lock.release()


def _as_interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
