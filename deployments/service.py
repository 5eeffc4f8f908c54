"""A process that must run: started under a life-line, started again when it ends."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from accuracy_core.engines.supervised import SupervisedProcess, start_supervised
from accuracy_core.errors import InfrastructureError

GRACE_S = 10.0
#: a service that ends more often than this within the window is broken, not unlucky
_MOST_RESTARTS = 5
_WINDOW_S = 300.0
_TAIL_LINES = 15


class Service:
    """`name` for messages, `log` gets what it prints (appended). All of its processes end with this one.

    It inherits our environment, `without` some variables, and gets `environment` on top.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        *,
        without: Collection[str] = (),
    ) -> None:
        self.name = name
        self.log = log
        self._command = list(command)
        inherited = {key: value for key, value in os.environ.items() if key not in without}
        self._environment = {**inherited, **environment}
        self._process: SupervisedProcess | None = None
        self._starts: deque[float] = deque()

    def start(self) -> None:
        """Start it. Raises InfrastructureError, with the end of its log, when it ends again and again."""
        now = time.monotonic()
        while self._starts and now - self._starts[0] > _WINDOW_S:
            self._starts.popleft()
        if len(self._starts) > _MOST_RESTARTS:
            raise InfrastructureError(f"{self.name} ends again and again", fix=f"see {self.log}", log_tail=self.tail())
        self._starts.append(now)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as file:
            self._process = start_supervised(self._command, env=self._environment, log=file, grace_s=GRACE_S)

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else -1

    def code(self) -> int | None:
        """Exit code, or None while it runs."""
        return self._process.poll() if self._process else -1

    def tail(self) -> str:
        """Last lines of its log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:])

    def cut(self) -> None:
        """Ask it to end. Does not wait."""
        if self._process:
            self._process.cut()

    def stop(self) -> None:
        """End it and everything below it, and wait for that."""
        process, self._process = self._process, None
        if process:
            process.stop()
