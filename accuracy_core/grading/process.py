"""Holding a submission's process: questions with a time limit, and an end that leaves nothing."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from accuracy_core.grading.counting import Event
from accuracy_core.grading.guard import DONE, EVENT, EVENTS, FAILED, HEADER, LOGITS, STARTED, TAMPERED
from accuracy_core.grading.task import GradeTask
from accuracy_core.grading.worker import DTYPES

#: what starting Python and importing torch may take on top of the task's own limit
START_LIMIT_S = 120.0
#: the folder of a submission may grow to this
FOLDER_BYTES = 1 << 30
FILE_BYTES = 64 << 20
_NONCE = 16
_FRAME_LIMIT = 1 << 28
_LOOK_S = 0.5


class SubmissionFailed(Exception):
    """The submission raised, hung, died or was refused; the text says which."""


@dataclass
class Answer:
    """What came before DONE. `seconds`: from before the tokens are told to the last byte of the logits, by our clock; a
    grader that is scheduled late makes it longer, never shorter."""

    seconds: float = float("nan")
    logits: torch.Tensor | None = None
    events: list[Event] = field(default_factory=list)


class SubmissionProcess:
    """A confined child. A context manager: leaving it kills whatever is left."""

    def __init__(self, submission: Path, folder: Path, weights: Path, task: GradeTask, device: str) -> None:
        self._task, self._folder = task, folder
        self._log = (folder / "output.log").open("wb")
        self._nonce = secrets.token_bytes(_NONCE)
        environment = {
            "PATH": os.environ.get("PATH", ""), "HOME": str(folder), "TMPDIR": str(folder), "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-m", "accuracy_core.grading.child"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, cwd=folder, env=environment,
            start_new_session=True,
        )  # fmt: skip
        self._buffer = bytearray()
        self._job = {
            "submission": str(submission), "folder": str(folder), "config": asdict(task.config),
            "weights": str(weights), "device": device, "nonce": self._nonce.hex(),
            "limits": {
                "memory_bytes": task.memory_limit_bytes,
                "cpu_seconds": int(START_LIMIT_S + 20 * task.time_limit_s),
                "file_bytes": FILE_BYTES,
            },
        }  # fmt: skip

    def build(self) -> None:
        """Start it, and call the submission's `build`. Raises SubmissionFailed."""
        self._send(json.dumps(self._job))
        self._ask("build", START_LIMIT_S + self._task.time_limit_s)

    def begin(self, seed: int, steps: int, *, poison: bool) -> None:
        """Give it a fresh cache with room for `steps` tokens."""
        self._ask(f"begin {seed} {steps} {int(poison)}", self._task.time_limit_s)

    def step(self, token_ids: Sequence[int], *, counted: bool) -> Answer:
        """One step on the current cache: logits (batch, vocab), seconds, and its profile when `counted`."""
        answer = self._ask(f"step {int(counted)}", self._task.time_limit_s, " ".join(map(str, token_ids)))
        if answer.logits is None:
            raise SubmissionFailed("a step gave no logits")
        return answer

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # what it died of is read below
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def _ask(self, line: str, limit_s: float, tokens: str = "") -> Answer:
        self._send(line)
        answer, began = Answer(), time.perf_counter()
        deadline = time.monotonic() + limit_s
        while True:
            kind, payload = self._frame(deadline, limit_s)
            if kind == STARTED:
                began = time.perf_counter()
                self._send(tokens)
            elif kind == LOGITS:
                answer.seconds = time.perf_counter() - began
                answer.logits = self._tensor(payload)
            elif kind == EVENTS:
                answer.events = unpack_events(payload)
            elif kind == DONE:
                return answer
            else:
                raise SubmissionFailed(payload.decode(errors="replace") or "no reason given")

    def _tensor(self, payload: bytes) -> torch.Tensor:
        """float32 (batch, vocab)."""
        (code,) = struct.unpack_from("<q", payload)
        config = self._task.config
        flat = torch.frombuffer(bytearray(payload[8:]), dtype=DTYPES[code]) if 0 <= code < len(DTYPES) else None
        if flat is None or flat.numel() != config.batch * config.vocab:
            raise SubmissionFailed("a step gave logits of another size than it said")
        return flat.float().view(config.batch, config.vocab)

    def _frame(self, deadline: float, limit_s: float) -> tuple[bytes, bytes]:
        head = _NONCE + struct.calcsize(HEADER)
        self._fill(head, deadline, limit_s)
        kind, length = struct.unpack_from(HEADER, self._buffer, _NONCE)
        known = kind in (STARTED, LOGITS, EVENTS, DONE, FAILED)
        if bytes(self._buffer[:_NONCE]) != self._nonce or not known or length > _FRAME_LIMIT:
            raise SubmissionFailed("it wrote to the grader's own channel")
        self._fill(head + length, deadline, limit_s)
        payload = bytes(self._buffer[head : head + length])
        del self._buffer[: head + length]
        return kind, payload

    def _fill(self, size: int, deadline: float, limit_s: float) -> None:
        """Read until the buffer holds `size` bytes, watching the clock and the folder."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while len(self._buffer) < size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise SubmissionFailed(f"no answer within {limit_s:.0f} s: it hangs, or is far too slow")
            if not select.select([descriptor], [], [], min(left, _LOOK_S))[0]:
                self._check_folder()
                continue
            data = os.read(descriptor, 1 << 20)
            if not data:
                raise SubmissionFailed(self._how_it_died())
            self._buffer += data

    def _check_folder(self) -> None:
        """Raises SubmissionFailed when the submission has filled its folder."""
        total = 0
        for parent, _, names in os.walk(self._folder):
            for name in names:
                with contextlib.suppress(OSError):
                    total += os.lstat(os.path.join(parent, name)).st_size
        if total > FOLDER_BYTES:
            raise SubmissionFailed(f"it wrote more than {FOLDER_BYTES >> 20} MiB to its folder")

    def _how_it_died(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        code = self._process.returncode
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            return f"its process was killed by {name} (a crash, or memory or CPU time over the limit)"
        if code == TAMPERED:
            return "it changed what measures it: the profiler, or the grader's channel"
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


def unpack_events(payload: bytes) -> list[Event]:
    """What the guard packed. Raises SubmissionFailed for anything else."""
    found, place, size = [], 0, struct.calcsize(EVENT)
    while place < len(payload):
        try:
            start, duration, thread, on_device, length = struct.unpack_from(EVENT, payload, place)
        except struct.error as error:
            raise SubmissionFailed("its profile cannot be read") from error
        place += size
        name = payload[place : place + length].decode(errors="replace")
        found.append(Event(name, start, duration, thread, bool(on_device)))
        place += length
    return found
