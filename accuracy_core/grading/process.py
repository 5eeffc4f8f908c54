"""Holding a submission's process: questions with a time limit, and an end that leaves nothing."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accuracy_core.grading.task import GradeTask

#: what starting Python and importing torch may take on top of the task's own limit
START_LIMIT_S = 120.0
_LINE_LIMIT = 1 << 16


class SubmissionFailed(Exception):
    """The submission raised, hung, died or was refused; the text says which."""


class SubmissionProcess:
    """A confined child. A context manager: leaving it kills whatever is left."""

    def __init__(self, submission: Path, folder: Path, weights: Path, task: GradeTask, device: str) -> None:
        self._task = task
        self._log = (folder / "output.log").open("wb")
        environment = {
            "PATH": os.environ.get("PATH", ""), "HOME": str(folder), "TMPDIR": str(folder), "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-m", "accuracy_core.grading.child"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, cwd=folder, env=environment,
            start_new_session=True,
        )  # fmt: skip
        self._buffer = b""
        self._job = {
            "submission": str(submission), "folder": str(folder), "config": asdict(task.config),
            "weights": str(weights), "device": device,
            "limits": {
                "memory_bytes": task.memory_limit_bytes,
                "cpu_seconds": int(START_LIMIT_S + 20 * task.time_limit_s),
            },
        }  # fmt: skip

    def build(self) -> None:
        """Start it. Raises SubmissionFailed."""
        self._ask(self._job, START_LIMIT_S + self._task.time_limit_s)

    def run(self, out: Path, *, cache_seed: int, token_seed: int, poison: bool, steps: int) -> float:
        """Seconds that the steps took, by this process's clock. Raises SubmissionFailed."""
        request = {"op": "run", "cache_seed": cache_seed, "token_seed": token_seed, "steps": steps, "poison": poison,
                   "out": str(out)}  # fmt: skip
        began = time.perf_counter()
        self._ask(request, self._task.time_limit_s)
        return time.perf_counter() - began

    def count(self, *, cache_seed: int, token_seed: int) -> dict[str, Any]:
        return self._ask({"op": "count", "cache_seed": cache_seed, "token_seed": token_seed}, self._task.time_limit_s)

    def _ask(self, message: dict[str, Any], limit_s: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write((json.dumps(message) + "\n").encode())
            self._process.stdin.flush()
        answer = self._receive(time.monotonic() + limit_s, limit_s)
        if answer.get("event") == "failed":
            raise SubmissionFailed(str(answer.get("reason", "no reason given")))
        return answer

    def _receive(self, deadline: float, limit_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            ready = select.select([descriptor], [], [], max(0.0, left))[0] if left > 0 else []
            if not ready:
                raise SubmissionFailed(f"no answer within {limit_s:.0f} s: it hangs, or is far too slow")
            data = os.read(descriptor, _LINE_LIMIT)
            if not data:
                raise SubmissionFailed(self._how_it_died())
            self._buffer += data
            if len(self._buffer) > _LINE_LIMIT:
                raise SubmissionFailed("it wrote to the grader's own channel")
        line, self._buffer = self._buffer.split(b"\n", 1)
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise SubmissionFailed("it wrote to the grader's own channel") from error
        return answer if isinstance(answer, dict) else {}

    def _how_it_died(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        code = self._process.returncode
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            return f"its process was killed by {name} (a crash, or memory or CPU time over the limit)"
        return f"its process ended with exit code {code}"

    def __enter__(self) -> SubmissionProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
