"""Processes of engines: found by their environment marker, ended, and waited for. Linux only (/proc)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable

#: unique name of one supervised tree; carried by the supervisor and everything below it
MARK = "ASSAY_ENGINE_MARK"
#: cores the tree runs on, `<platform>:<i>,<j>@<lock directory>`
CORES_MARK = "ASSAY_ENGINE_CORES"


def environment_of(pid: int) -> dict[str, str]:
    """Environment that `pid` was started with; empty when it is gone or belongs to somebody else."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            raw = file.read()
    except OSError:
        return {}
    pairs = (item.split(b"=", 1) for item in raw.split(b"\0") if b"=" in item)
    return {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, value in pairs}


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def parent_of(pid: int) -> int | None:
    """Parent's pid, or None when `pid` is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rsplit(b")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[1])


def is_alive(pid: int) -> bool:
    """True when `pid` exists and is no zombie."""
    return parent_of(pid) is not None


def ancestors() -> set[int]:
    """This process and everything above it."""
    found: set[int] = set()
    pid: int | None = os.getpid()
    while pid and pid not in found:
        found.add(pid)
        pid = parent_of(pid)
    return found


def marked(mark: str) -> list[int]:
    """Living processes of the supervised tree `mark`, wherever they were reparented to."""
    return [pid for pid in all_pids() if is_alive(pid) and environment_of(pid).get(MARK) == mark]


def cores_marker(platform: str, cores: Iterable[int], lock_dir: str) -> str:
    """Value of CORES_MARK."""
    return f"{platform}:{','.join(str(core) for core in cores)}@{lock_dir}"


def leftovers(platform: str, cores: Iterable[int], lock_dir: str) -> list[int]:
    """Engine processes marked as running on one of `cores`, this process and its ancestors excepted.

    Only meaningful for the holder of those cores' locks: then whatever is found was left behind.
    """
    wanted = set(cores)
    mine = ancestors()
    found = []
    for pid in all_pids():
        if pid in mine or not is_alive(pid):
            continue
        value = environment_of(pid).get(CORES_MARK, "")
        where, _, directory = value.partition("@")
        kind, _, numbers = where.partition(":")
        used = {int(item) for item in numbers.split(",") if item.isdigit()}
        if kind == platform and directory == lock_dir and used & wanted:
            found.append(pid)
    return found


def end(pids: Iterable[int], *, grace_s: float = 0.0, timeout_s: float = 10.0) -> list[int]:
    """SIGTERM, after `grace_s` SIGKILL. Returns those still alive after `timeout_s` more."""
    left = [pid for pid in pids if is_alive(pid)]
    if grace_s > 0:
        _signal(left, signal.SIGTERM)
        left = wait_gone(left, grace_s)
    _signal(left, signal.SIGKILL)
    return wait_gone(left, timeout_s)


def wait_gone(pids: Iterable[int], timeout_s: float) -> list[int]:
    """Wait until none of `pids` is alive. Returns those that are after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while left := [pid for pid in pids if is_alive(pid)]:
        if time.monotonic() >= deadline:
            return left
        time.sleep(0.02)
    return []


def _signal(pids: Iterable[int], signum: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, signum)
        except (ProcessLookupError, PermissionError):
            continue
