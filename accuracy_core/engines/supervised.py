"""A child process whose whole tree ends with its creator, however the creator ends."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
import uuid
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from accuracy_core.engines import processes
from accuracy_core.errors import EngineStartError, InfrastructureError

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
#: how long the tree may take to end on its own before it is killed
DEFAULT_GRACE_S = 10.0
_SPAWN_TIMEOUT_S = 30.0
_AFTER_GRACE_S = 12.0

_open: weakref.WeakSet[SupervisedProcess] = weakref.WeakSet()


@dataclass(eq=False)
class SupervisedProcess:
    """A running supervisor and the command below it. `stop` ends both; it may be called any number of times.

    `pid` is the command's process, `mark` names its tree (see `processes.MARK`), `stdin` and `stdout` are the
    command's pipes when they were asked for.
    """

    supervisor: subprocess.Popen[bytes]
    pid: int
    mark: str
    grace_s: float
    _lifeline: int | None
    stdin: IO[bytes] | None = field(default=None)
    stdout: IO[bytes] | None = field(default=None)

    def poll(self) -> int | None:
        """Exit code of the command (128 + signal), or None while it runs."""
        code = self.supervisor.poll()
        if code is None:
            return None
        return 128 - code if code < 0 else code

    def wait(self, timeout_s: float) -> int | None:
        """Exit code, or None when it still runs after `timeout_s`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.supervisor.wait(timeout_s)
        return self.poll()

    def cut(self) -> None:
        """Close the life-line: from here on the supervisor ends the tree. Cannot fail, does not wait."""
        lifeline, self._lifeline = self._lifeline, None
        if lifeline is not None:
            with contextlib.suppress(OSError):
                os.close(lifeline)

    def alive(self) -> list[int]:
        """Living processes of the tree, the supervisor included."""
        return processes.marked(self.mark)

    def stop(self) -> None:
        """End the tree and wait for it. Raises InfrastructureError if anything of it survives SIGKILL."""
        self.cut()
        if self.wait(self.grace_s + _AFTER_GRACE_S) is None:
            self.supervisor.kill()
            self.supervisor.wait()
        for pipe in (self.stdin, self.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        survivors = processes.end(self.alive())
        _open.discard(self)
        if survivors:
            raise InfrastructureError(
                f"processes of the engine are still alive after SIGKILL: {survivors}",
                fix="they hang in the kernel or the device driver; look at them and at the driver's log",
            )


@contextlib.contextmanager
def supervised_process(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    log: IO[bytes] | int,
    lock_fds: Sequence[int] = (),
    grace_s: float = DEFAULT_GRACE_S,
    pipes: bool = False,
) -> Iterator[SupervisedProcess]:
    """Run `command` under a supervisor; leaving the block ends its whole tree. Arguments as `start_supervised`."""
    process = start_supervised(command, env=env, log=log, lock_fds=lock_fds, grace_s=grace_s, pipes=pipes)
    try:
        yield process
    finally:
        process.cut()  # first, and nothing before it: a log line that fails here would leave the engine running
        process.stop()


def start_supervised(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    log: IO[bytes] | int,
    lock_fds: Sequence[int] = (),
    grace_s: float = DEFAULT_GRACE_S,
    pipes: bool = False,
    remove: Path | None = None,
) -> SupervisedProcess:
    """Start `command` with environment `env`; standard error, and without `pipes` standard output too, go to `log`.

    `lock_fds` are inherited by supervisor and command. When this process ends, or `stop` is called, the tree gets
    SIGTERM, and SIGKILL `grace_s` seconds later; then the folder `remove` is deleted. Raises EngineStartError when the
    command cannot be started.
    """
    mark = uuid.uuid4().hex
    read_end, lifeline = os.pipe()
    status, status_write = os.pipe()
    locks = tuple(lock_fds)
    options = {
        "lifeline": read_end,
        "status": status_write,
        "creator": os.getpid(),
        "grace": grace_s,
        "locks": ",".join(map(str, locks)),
        "remove": remove or "",
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    arguments = [sys.executable, "-I", "-S", str(_SUPERVISOR), *words, "--", *command]
    try:
        supervisor = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipes else log,
            stderr=log,
            env={**env, processes.MARK: mark},
            pass_fds=(read_end, status_write, *locks),
            start_new_session=True,
        )
    except BaseException:
        for fd in (read_end, lifeline, status, status_write):
            os.close(fd)
        raise
    os.close(read_end)
    os.close(status_write)
    process = SupervisedProcess(supervisor, -1, mark, grace_s, lifeline, supervisor.stdin, supervisor.stdout)
    _open.add(process)
    try:
        process.pid = _started_pid(status)
    except BaseException:
        process.stop()
        raise
    finally:
        os.close(status)
    return process


def _started_pid(status: int) -> int:
    """Pid of the command, as the supervisor reports it."""
    text = b""
    deadline = time.monotonic() + _SPAWN_TIMEOUT_S
    while not text.endswith(b"\n"):
        if not select.select([status], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise EngineStartError("the supervisor of the engine did not answer", fix="is the machine overloaded?")
        part = os.read(status, 4096)
        if not part:
            raise EngineStartError("the supervisor of the engine ended at once", fix="see the log")
        text += part
    answer = json.loads(text)
    if "error" in answer:
        raise EngineStartError(f"the engine's command cannot be run: {answer['error']}", fix="check EngineSpec.python")
    return int(answer["pid"])


def _forget_in_fork() -> None:
    """A forked child must not hold the life-lines open: the creator's death would go unnoticed."""
    for process in list(_open):
        process.cut()


os.register_at_fork(after_in_child=_forget_in_fork)
