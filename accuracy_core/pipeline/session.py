"""The device while an evaluation runs: leased cores, a server that can be started again, a stop that is verified."""

from __future__ import annotations

import uuid
from pathlib import Path

from accuracy_core.engines.cores import CoreLease
from accuracy_core.engines.server import RunningServer, start_server
from accuracy_core.pipeline import progress
from accuracy_core.pipeline.device import wait_for_cores
from accuracy_core.pipeline.preflight_findings import check_loaded
from accuracy_core.pipeline.run import Run


class EvaluationSession:
    """Context manager. Whatever happens inside, leaving it stops the server and gives the cores back."""

    def __init__(self, run: Run, log_path: Path) -> None:
        self.run = run
        self.log_path = log_path
        self.nonce = uuid.uuid4().hex  # of this evaluation, however often its server is started
        self._lease: CoreLease | None = None
        self._server: RunningServer | None = None

    def __enter__(self) -> EvaluationSession:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def server(self) -> RunningServer:
        """The running server; started on first use, and again after it died.

        Raises ConfigurationError when it did not find all weights, besides what `start_server` raises.
        """
        if self._server is not None and self._server.alive:
            return self._server
        self.stop()  # also gives back the cores of a start that failed
        parameters = self.run.parameters
        note = f"evaluation of {self.run.model_name}"
        self._lease = wait_for_cores(self.run.engine, "evaluate", timeout_s=parameters.device_timeout_s, note=note)
        progress.report("evaluate", message="starting the server")
        self._server = start_server(
            self.run.engine,
            self._lease,
            log_path=self.log_path,
            port=parameters.server_port,
            startup_timeout_s=parameters.startup_timeout_s,
            served_model_name=self.run.model_name,
        )
        check_loaded(self.run, self.log_path)
        return self._server

    def stop(self) -> None:
        """Stop the server and give the cores back. Raises InfrastructureError if anything of it is still alive."""
        server, lease = self._server, self._lease
        self._server = self._lease = None
        try:
            if server is not None:
                server.stop()
        finally:
            if lease is not None:
                lease.release()
