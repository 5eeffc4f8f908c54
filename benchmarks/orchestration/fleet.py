"""A Prefect server and workers of several pools, each like a host of its own: locks, home and engine of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from accuracy_core.engines import processes
from accuracy_core.engines.server import free_port
from deployments.environment import QUERY_S, SERVER_ONLY, worker_settings
from deployments.service import Service
from deployments.up import Stack

ROOT = Path(__file__).resolve().parents[2]
FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
POLL_S = 0.2
#: the server has the machine's cores to share with what is measured
API_POLL_S = 1.0


@dataclass
class Host:
    """One pool and its worker. `environment` is what makes it a host of its own."""

    pool: str
    service: Service
    locks: Path
    environment: dict[str, str] = field(default_factory=dict)

    def engine_processes(self) -> list[int]:
        """Living processes of engines on this host's cores, their supervisors included."""
        mark = f"@{self.locks}"
        marked = (pid for pid in processes.all_pids() if processes.is_alive(pid))
        return [pid for pid in marked if processes.environment_of(pid).get(processes.CORES_MARK, "").endswith(mark)]

    def supervisor(self) -> int | None:
        return next((pid for pid in self.engine_processes() if b"supervisor.py" in _command(pid)), None)

    def engine(self) -> int | None:
        """The process that is the engine: the supervisor's child."""
        above = self.supervisor()
        return next((pid for pid in self.engine_processes() if above and processes.parent_of(pid) == above), None)

    def cores_held(self) -> int:
        """Locked core files, by the kernel's own table."""
        table = Path("/proc/locks").read_text(encoding="ascii")
        return sum(f":{path.stat().st_ino} " in table for path in self.locks.glob("*.lock"))


class Fleet:
    """Context manager: the server of `assay up`, and `hosts`. `folder` takes everything.

    `light` deploys `light_flows` instead of Assay's own. `runs` is where run directories go, `environment` is added to
    that of every worker.
    """

    def __init__(
        self,
        folder: Path,
        pools: Sequence[str],
        *,
        query_s: float = 1,
        light: bool = False,
        runs: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.port = free_port()
        self.stack = Stack(folder / "home", self.port, None, str(folder / "runs"), [])
        self.hosts: dict[str, Host] = {}
        self._pools = list(pools)
        self._query_s = query_s
        self._light = light
        self._runs = runs or str(folder / "runs")
        self._environment = dict(environment or {})
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}/api", timeout=60)

    def __enter__(self) -> Fleet:
        try:
            self.stack.server.start()
            from deployments.bootstrap import CPU_POOL, connected, ensure_deployments, ensure_pools

            self.stack._wait_healthy()
            devices = [pool for pool in self._pools if pool != CPU_POOL]
            with self.settings(), connected() as client:
                ensure_pools(client, devices)
                if self._light:
                    _deploy_light(client, devices)
                else:
                    ensure_deployments(client, devices)
            for pool in self._pools:
                self._add(pool)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @contextlib.contextmanager
    def settings(self) -> Iterator[None]:
        """While inside, and in this thread, Prefect's client talks to this server."""
        from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

        with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{self.port}/api", PREFECT_API_AUTH_STRING: None}):
            yield

    def stop(self) -> None:
        for host in self.hosts.values():
            host.service.cut()
        for host in self.hosts.values():
            host.service.stop()
            processes.end(host.engine_processes())
        self.stack.server.stop()

    def restart(self, host: Host) -> None:
        """As `assay up` does with a worker that has ended: tell the server what is gone, then start it."""
        from deployments.bootstrap import connected
        from deployments.reconcile import reconcile, worker_name

        host.service.stop()
        with self.settings(), connected() as client:
            reconcile(client, host.pool, worker_name(host.pool))
        host.service.start()

    def create(self, deployment: str, **parameters: Any) -> str:
        """Id of a new flow run."""
        found = self.ask("GET", f"/deployments/name/{deployment}")
        return str(
            self.ask("POST", f"/deployments/{found['id']}/create_flow_run", json={"parameters": parameters})["id"]
        )

    def run(self, run_id: str) -> dict[str, Any]:
        return dict(self.ask("GET", f"/flow_runs/{run_id}"))

    def cancel(self, run_id: str) -> None:
        body = {"state": {"type": "CANCELLING", "name": "Cancelling"}}
        self.ask("POST", f"/flow_runs/{run_id}/set_state", json=body)

    def children(self, run_id: str) -> list[dict[str, Any]]:
        body = {"flow_runs": {"parent_flow_run_id": {"any_": [run_id]}}}
        return list(self.ask("POST", "/flow_runs/filter", json=body))

    def logs(self, run_id: str) -> list[str]:
        body = {"logs": {"flow_run_id": {"any_": [run_id]}}, "sort": "TIMESTAMP_ASC"}
        return [row["message"] for row in self.ask("POST", "/logs/filter", json=body)]

    def wait_final(self, run_id: str, timeout_s: float) -> dict[str, Any]:
        """The run once it has ended, or as it is after `timeout_s`."""
        self.until(lambda: self.run(run_id)["state"]["type"] in FINAL, timeout_s, poll_s=API_POLL_S)
        return self.run(run_id)

    def until(self, condition: Callable[[], object], timeout_s: float, *, poll_s: float = POLL_S) -> bool:
        """Poll. Returns whether it held within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(poll_s)
        return True

    def ask(self, method: str, path: str, **options: Any) -> Any:
        for attempt in range(60):
            try:
                answer = self._http.request(method, path, **options)
                if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                    answer.raise_for_status()
                    return answer.json() if answer.content else None
            except httpx.TransportError:
                if attempt == 59:
                    raise
            time.sleep(0.5)
        raise TimeoutError(f"the API is busy: {path}")

    def _add(self, pool: str) -> None:
        from deployments.reconcile import worker_name

        locks, home = self.folder / "locks" / pool, self.folder / "homes" / pool
        for folder in (locks, home):
            folder.mkdir(parents=True)
        own = {
            "ASSAY_LOCK_DIR": str(locks),
            "HOME": str(home),
            "ASSAY_CACHE_DIR": str(home / "cache"),
            "VLLM_NEURON_GOLDEN_CACHE_DIR": str(self.folder / "goldens"),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": str(ROOT),
            **self._environment,
        }
        settings = worker_settings(home / "prefect", self.port, None, self._runs)
        settings |= own | {"PREFECT_WORKER_QUERY_SECONDS": str(min(self._query_s, QUERY_S))}
        command = [sys.executable, "-m", "prefect", "worker", "start", "--type", "process"]
        command += ["--pool", pool, "--name", worker_name(pool)]
        service = Service(pool, command, settings, self.folder / "logs" / f"{pool}.log", without=SERVER_ONLY)
        self.hosts[pool] = Host(pool, service, locks, own)
        service.start()


def _deploy_light(client: Any, pools: Sequence[str]) -> None:
    from benchmarks.orchestration import light_flows
    from deployments.bootstrap import strict_schema

    for flow in (light_flows.light_eval, light_flows.light_prompt):
        for pool in pools:
            client.create_deployment(
                flow_id=client.create_flow(flow),
                name=pool,
                entrypoint=f"{light_flows.__name__}.{flow.fn.__name__}",
                parameter_openapi_schema=strict_schema(flow),
                work_pool_name=pool,
                work_queue_name="adhoc",
                job_variables={"command": "python -m prefect.engine"},
            )


def fake_python(folder: Path) -> str:
    """Path of an engine's interpreter that is the fake."""
    script = folder / "fake-python"
    script.write_text(f"#!{sys.executable} -IS\n" + Path(__file__).with_name("fake_engine.py").read_text())
    script.chmod(0o755)
    return str(script)


def send(pid: int | None, signum: signal.Signals) -> None:
    if pid:
        os.kill(pid, signum)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
