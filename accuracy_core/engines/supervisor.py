"""Supervisor of one engine, run as a script by `supervised.supervised_process`: standard library only, Linux only.

    python -I -S supervisor.py --lifeline FD --status FD --creator PID --grace S [--locks FD,FD] [--remove DIR]
                               -- COMMAND …

It starts COMMAND in a session of its own and ends COMMAND's whole tree as soon as its creator is gone, however it died
(the life-line pipe is closed by the kernel), on SIGTERM, and when COMMAND ends by itself. It is a child subreaper, so
that processes which detach themselves are found too. LOCKS are the flock'ed core files; COMMAND inherits them, and the
kernel keeps the cores locked until the last process that has them is gone. DIR is removed when the creator is gone.
Its exit code is COMMAND's (128 + signal).
"""

import argparse
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
#: helpers that clean up (shared memory) once the engine is gone and then end by themselves
HELPERS = (b"multiprocessing.resource_tracker",)
HELPER_GRACE_S = 0.25
#: after the engine's leader has ended, how long the rest of its tree may take before it is killed
REST_GRACE_S = 1.0
LAST_RESORT_S = 10.0
POLL_S = 0.02

libc = ctypes.CDLL(None, use_errno=True)


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="supervisor")
    parser.add_argument("--lifeline", type=int, required=True)
    parser.add_argument("--status", type=int, required=True)
    parser.add_argument("--creator", type=int, required=True)
    parser.add_argument("--grace", type=float, required=True)
    parser.add_argument("--locks", default="")
    parser.add_argument("--remove", default="")
    split = arguments.index("--")
    options = parser.parse_args(arguments[:split])
    options.locks = tuple(int(fd) for fd in options.locks.split(",") if fd)
    return options, arguments[split + 1 :]


def descendants() -> list[int]:
    """Pids of every living process below this one. Zombies are left out."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rsplit(b")", 1)[1].split()
        except (OSError, IndexError):
            continue
        if fields[0] not in (b"Z", b"X"):
            children.setdefault(int(fields[1]), []).append(int(name))
    found, todo = [], [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def is_helper(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read()
    except OSError:
        return False
    return any(name in command for name in HELPERS)


def send(pids: Iterable[int], signum: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            pass


class Tree:
    """The engine's process tree. `code` is the leader's exit code once it has ended."""

    def __init__(self, leader: int) -> None:
        self.leader = leader
        self.code: int | None = None

    def reap(self) -> None:
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.leader:
                    code = os.waitstatus_to_exitcode(status)
                    self.code = 128 - code if code < 0 else code
        except ChildProcessError:
            return

    def wait(self, seconds: float, done: Callable[[], bool]) -> bool:
        """Reap until `done()` or `seconds` are over. Returns whether it is done."""
        end = time.monotonic() + seconds
        while True:
            self.reap()
            if done():
                return True
            if time.monotonic() >= end:
                return False
            time.sleep(POLL_S)

    def end(self, grace: float) -> None:
        """SIGTERM to the leader, within `grace` seconds; then SIGKILL to all that is left, as long as there is any."""
        deadline = time.monotonic() + grace
        if self.code is None:
            send([self.leader], signal.SIGTERM)
            self.wait(grace, lambda: self.code is not None)
        rest = descendants()
        if rest and self.code is not None:
            send(rest, signal.SIGTERM)
            left = max(0.0, min(REST_GRACE_S, deadline - time.monotonic()))
            self.wait(left, lambda: all(is_helper(pid) for pid in descendants()))
        self.kill_rest()

    def kill_rest(self) -> None:
        end = time.monotonic() + LAST_RESORT_S
        helpers_until = time.monotonic() + HELPER_GRACE_S
        while time.monotonic() < end:
            self.reap()
            left = descendants()
            if not left:
                return
            helpers = [pid for pid in left if is_helper(pid)] if time.monotonic() < helpers_until else []
            send([pid for pid in left if pid not in helpers], signal.SIGKILL)
            time.sleep(POLL_S)


def watch(creator: int) -> int | None:
    """Descriptor that becomes readable when process `creator` ends, or None where the kernel has none."""
    try:
        return os.pidfd_open(creator)
    except (AttributeError, OSError):
        return None


def main(arguments: list[str]) -> int:
    options, command = parse(arguments)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    os.set_blocking(wake, False)
    asked: list[int] = []
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda number, frame: asked.append(number))
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(waker)

    def before_exec() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # the supervisor killed too: at least the leader goes with it

    try:
        child = subprocess.Popen(command, start_new_session=True, pass_fds=options.locks, preexec_fn=before_exec)
    except OSError as error:
        os.write(options.status, json.dumps({"error": str(error)}).encode() + b"\n")
        return 127
    os.write(options.status, json.dumps({"pid": child.pid}).encode() + b"\n")
    os.close(options.status)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)  # the engine alone holds its stdin and stdout, so that its end is seen as end of file

    tree = Tree(child.pid)
    creator = watch(options.creator)
    watched = [fd for fd in (options.lifeline, creator) if fd is not None]
    abandoned = False
    while not asked:
        tree.reap()
        if tree.code is not None:
            break
        ready = select.select([*watched, wake], [], [], 5)[0]
        if wake in ready:
            os.read(wake, 4096)
        if any(fd in ready for fd in watched):
            abandoned = True
            break
    tree.end(options.grace)
    if abandoned and options.remove:
        shutil.rmtree(options.remove, ignore_errors=True)
    return 143 if tree.code is None else tree.code


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
