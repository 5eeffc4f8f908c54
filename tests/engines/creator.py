"""Starts an engine, says so in one JSON line, and waits to be killed."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from accuracy_core.engines.cores import acquire_cores, lease_cores
from accuracy_core.engines.environment import engine_environment
from accuracy_core.schemas import EngineSpec, Platform


def say(process: Any, **more: Any) -> None:
    print(json.dumps({"mark": process.mark, "pid": process.pid, "supervisor": process.supervisor.pid, **more}))
    sys.stdout.flush()
    time.sleep(3600)


def main(kind: str, text: str, grace: str) -> None:
    grace_s = float(grace)
    if kind == "command":
        from accuracy_core.engines.supervised import supervised_process

        spec = EngineSpec(model="embedded", python=sys.executable)
        with acquire_cores(Platform.CPU, 1, timeout_s=0, note="creator") as lease:
            environment = engine_environment(spec, lease, python=Path(sys.executable), scratch=Path.cwd(), model="x")
            command = [sys.executable, "-c", text]
            with supervised_process(
                command, env=environment, log=2, lock_fds=lease.fds, grace_s=grace_s, pipes=True
            ) as process:
                assert process.stdout is not None
                process.stdout.readline()  # the command says that it is ready
                say(process)
        return
    spec = EngineSpec.from_json(text)
    lease = lease_cores(spec, timeout_s=0, note="creator")
    if kind == "server":
        from accuracy_core.engines.server import start_server

        with start_server(spec, lease, log_path=Path("/dev/stderr"), grace_s=grace_s) as server:
            say(server._process, base_url=server.base_url)
    else:
        from accuracy_core.engines.offline import OfflineVllmEngine

        with OfflineVllmEngine(spec, lease=lease, log_path=Path("/dev/stderr"), grace_s=grace_s) as engine:
            say(engine._process, scratch=str(engine.scratch))


if __name__ == "__main__":
    main(*sys.argv[1:])
