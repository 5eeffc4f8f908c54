"""Exclusive use of device cores: one flock'ed file per core, released by the kernel when the last user is gone."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from accuracy_core.engines import processes
from accuracy_core.engines.device_users import DEVICE_TOOL, device_users
from accuracy_core.engines.devices import CORES_VARIABLE, cores_needed, platform_cores, visible_cores
from accuracy_core.errors import ConfigurationError, DeviceBusyError, InfrastructureError
from accuracy_core.schemas import EngineSpec, Platform

#: where the lock files are; every user and every run on this host must agree on it
LOCK_DIR = "ASSAY_LOCK_DIR"
_DEFAULT_LOCK_DIR = "/tmp/assay-locks"
_POLL_S = 0.2
#: a look at a lock (`cores_free`) holds it for an instant; even with no time to wait one try is not enough
_LEAST_TRIES = 3
_LEAST_POLL_S = 0.05
#: how long the device's tool may still show processes that have ended
_TOOL_S = 10.0


@dataclass(frozen=True)
class Holder:
    """Who holds a core, as written by the holder itself. `pid` is the process that leased it."""

    core: int
    pid: int
    note: str
    since: float

    def __str__(self) -> str:
        return f"core {self.core}: process {self.pid}, {self.note or 'no note'}, for {time.time() - self.since:.0f} s"


class CoreLease:
    """Locked cores. `fds` are the locks: hand them to every process that may use the cores.

    A context manager. `release` closes this process's descriptors; a surviving engine keeps its own, and the cores stay
    locked. Never unlocks explicitly, for that would free them under the engine.
    """

    def __init__(self, platform: Platform, cores: tuple[int, ...], fds: tuple[int, ...], lock_dir: Path) -> None:
        self.platform = platform
        self.cores = cores
        self.fds = fds
        self.lock_dir = lock_dir

    def environment(self) -> dict[str, str]:
        """What an engine on these cores gets: the platform's visible cores, and the marker that finds leftovers."""
        marker = processes.cores_marker(self.platform, self.cores, str(self.lock_dir))
        return {**visible_cores(self.platform, self.cores), processes.CORES_MARK: marker}

    def other_users(self) -> list[int]:
        """Processes besides this one that hold the same locks."""
        paths = {str(_path(self.lock_dir, self.platform, core)) for core in self.cores}
        return [pid for pid in processes.all_pids() if pid != os.getpid() and _holds(pid, paths)]

    def release(self) -> None:
        fds, self.fds = self.fds, ()
        for fd in reversed(fds):
            os.close(fd)

    def __enter__(self) -> CoreLease:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


def lease_cores(spec: EngineSpec, *, timeout_s: float = 3600, note: str = "") -> CoreLease:
    """The cores that `spec` needs, as soon as they are free. Errors as `acquire_cores`."""
    return acquire_cores(spec.platform, cores_needed(spec), timeout_s=timeout_s, note=note)


def acquire_cores(
    platform: Platform, count: int = 1, *, cores: Sequence[int] | None = None, timeout_s: float = 3600, note: str = ""
) -> CoreLease:
    """Lock `count` cores (the lowest free ones), or exactly `cores`; then end what earlier engines left behind on them.

    Locks are taken in ascending order and none is kept while waiting for the others, so two callers cannot block each
    other. Raises ConfigurationError for a request that this host can never meet, DeviceBusyError naming the holders
    when the cores are not free within `timeout_s` or the device's tool shows a user that holds no lock,
    InfrastructureError when a leftover cannot be ended.
    """
    known = platform_cores(platform)
    wanted = _possible(platform, known, count, cores)
    directory = lock_directory()
    deadline = time.monotonic() + timeout_s
    tries = 0
    while True:
        lease = _try_all(platform, wanted, count if cores is None else len(wanted), directory, note)
        if lease is not None:
            try:
                _end_leftovers(lease)
                _check_unused(lease)
            except BaseException:
                lease.release()
                raise
            return lease
        tries += 1
        if time.monotonic() >= deadline and tries >= _LEAST_TRIES:
            held = "\n  ".join(str(holder) for holder in holders(platform)) or "the holder left no note"
            raise DeviceBusyError(
                f"{platform.value} cores are not free after {timeout_s:.0f} s; {count} needed, held are\n  {held}",
                fix="wait for the other run, cancel it, or give more time to wait for the device",
            )
        time.sleep(_POLL_S if timeout_s > 0 else _LEAST_POLL_S)


def cores_free(platform: Platform, cores: Sequence[int] | None = None) -> bool:
    """True when nobody holds any of `cores` (default: all of the platform's), this process included."""
    directory = lock_directory()
    for core in cores if cores is not None else platform_cores(platform):
        fd = _open(_path(directory, platform, core))
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
    return True


def holders(platform: Platform) -> list[Holder]:
    """Who holds the platform's cores now, free ones left out."""
    directory = lock_directory()
    found = []
    for core in platform_cores(platform):
        if not cores_free(platform, [core]):
            found.append(_holder(_path(directory, platform, core), core))
    return found


def lock_directory() -> Path:
    """$ASSAY_LOCK_DIR, else a directory that all users of this host share. Created when it is missing."""
    directory = Path(os.environ.get(LOCK_DIR) or _DEFAULT_LOCK_DIR)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if directory.stat().st_uid == os.getuid():
            directory.chmod(0o1777)  # the umask must not lock other users out
    except OSError as error:
        raise ConfigurationError(
            f"the lock directory {directory} cannot be used: {error}", fix=f"set ${LOCK_DIR} to one that can"
        ) from error
    return directory


def _possible(platform: Platform, known: tuple[int, ...], count: int, cores: Sequence[int] | None) -> tuple[int, ...]:
    name = platform.value
    fix = f"check the parallel sizes, or describe this host's cores with ${CORES_VARIABLE[platform]}"
    if cores is not None:
        strange = sorted(set(cores) - set(known))
        if strange or not cores:
            raise ConfigurationError(f"{name} cores {list(cores)} asked for, this host has {list(known)}", fix=fix)
        return tuple(sorted(set(cores)))
    if count < 0 or count > len(known):
        raise ConfigurationError(f"{count} {name} cores needed, this host has {len(known)}", fix=fix)
    return known


def _try_all(platform: Platform, wanted: tuple[int, ...], count: int, directory: Path, note: str) -> CoreLease | None:
    """Lock `count` of `wanted`, ascending, or none at all."""
    taken: list[tuple[int, int]] = []
    try:
        for core in wanted:
            if len(taken) == count:
                break
            fd = _lock(_path(directory, platform, core))
            if fd is not None:
                taken.append((core, fd))
    except BaseException:
        _close(fd for _, fd in taken)
        raise
    if len(taken) < count:
        _close(fd for _, fd in taken)
        return None
    for _, fd in taken:
        text = json.dumps({"pid": os.getpid(), "note": note, "since": time.time()}).encode()
        os.ftruncate(fd, 0)
        os.pwrite(fd, text, 0)
    return CoreLease(platform, tuple(core for core, _ in taken), tuple(fd for _, fd in taken), directory)


def _lock(path: Path) -> int | None:
    """Locked descriptor of `path`, or None when somebody else has it."""
    fd = _open(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_ino == path.stat().st_ino:
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(fd)  # held, or the file was removed and made anew in between: locking the old one excludes nobody
    return None


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags)  # without O_CREAT: sticky directories refuse it on another user's file
        fd = os.open(path, flags | os.O_CREAT, 0o666)
    except OSError as error:
        raise InfrastructureError(
            f"the lock file {path} cannot be opened: {error}", fix=f"check its owner and mode, or set ${LOCK_DIR}"
        ) from error
    if stat.S_IMODE(os.fstat(fd).st_mode) != 0o666 and os.fstat(fd).st_uid == os.getuid():
        os.fchmod(fd, 0o666)
    return fd


def _path(directory: Path, platform: Platform, core: int) -> Path:
    return directory / f"{platform.value}-{core}.lock"


def _holder(path: Path, core: int) -> Holder:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Holder(core, int(data["pid"]), str(data["note"]), float(data["since"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Holder(core, 0, "unknown", time.time())


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def _holds(pid: int, paths: set[str]) -> bool:
    """True when `pid` has one of `paths` open on a description that is locked (waiting for it is not holding it)."""
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            if os.readlink(f"/proc/{pid}/fd/{fd}") in paths:
                info = Path(f"/proc/{pid}/fdinfo/{fd}").read_text(encoding="utf-8")
                if "FLOCK" in info:
                    return True
    except OSError:
        return False
    return False


def _end_leftovers(lease: CoreLease) -> None:
    left = processes.leftovers(lease.platform, lease.cores, str(lease.lock_dir))
    survivors = processes.end(left, grace_s=0.0)
    if survivors:
        raise InfrastructureError(
            f"an earlier engine is still on {lease.platform.value} cores {list(lease.cores)}: processes {survivors}",
            fix="end them, they ignore SIGKILL or belong to another user",
        )


def _check_unused(lease: CoreLease) -> None:
    """The device's own tool must show nobody: a process that takes no lock would share the cores with us."""
    deadline = time.monotonic() + _TOOL_S
    while users := device_users(lease.platform, lease.cores):
        if time.monotonic() >= deadline:
            raise DeviceBusyError(
                f"{lease.platform.value} cores {list(lease.cores)} are used by processes {users}, which hold no lock",
                fix=f"end them; or set ${DEVICE_TOOL}=off where devices are shared on purpose",
            )
        time.sleep(_POLL_S)  # the driver takes a moment to notice that a process is gone
