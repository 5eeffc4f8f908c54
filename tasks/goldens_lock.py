"""A lock manager for Prefect whose locks die with their holder.

Prefect's own file-based one leaves its lock file behind when a process is killed, and every later run waits for ever.
Here a lock is the kernel's (`flock`): one host, or a shared file system on which flock works. Where two hosts compute
the same golden, the store still lets only one of them win.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

POLL_S = 0.1


class FlockLockManager:
    """See `prefect.locking.protocol.LockManager`. `directory` is asked for when a lock is first needed."""

    def __init__(self, directory: Callable[[], Path]) -> None:
        self._directory = directory
        self._held: dict[tuple[str, str], int] = {}
        self._guard = threading.Lock()

    def __deepcopy__(self, memo: Any) -> FlockLockManager:
        return self  # Prefect copies a policy to configure it; the locks of a process are in one place

    def __reduce__(self) -> tuple[Any, ...]:
        return FlockLockManager, (self._directory,)  # what a worker on another machine gets holds nothing

    def acquire_lock(
        self, key: str, holder: str, acquire_timeout: float | None = None, hold_timeout: float | None = None
    ) -> bool:
        """True when held. `hold_timeout` is not needed: a dead holder holds nothing."""
        deadline = _deadline(acquire_timeout)
        while not self._try(key, holder):
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
        return True

    async def aacquire_lock(
        self, key: str, holder: str, acquire_timeout: float | None = None, hold_timeout: float | None = None
    ) -> bool:
        """As `acquire_lock`."""
        deadline = _deadline(acquire_timeout)
        while not self._try(key, holder):
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(POLL_S)
        return True

    def release_lock(self, key: str, holder: str) -> None:
        """Raises ValueError if `holder` does not hold it."""
        with self._guard:
            descriptor = self._held.pop((key, holder), None)
        if descriptor is None:
            raise ValueError(f"{holder} holds no lock on {key}")
        os.close(descriptor)

    def is_locked(self, key: str) -> bool:
        descriptor = self._open(key)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            return False
        finally:
            os.close(descriptor)

    def is_lock_holder(self, key: str, holder: str) -> bool:
        with self._guard:
            return (key, holder) in self._held

    def wait_for_lock(self, key: str, timeout: float | None = None) -> bool:
        """True when it is free."""
        deadline = _deadline(timeout)
        while self.is_locked(key):
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
        return True

    async def await_for_lock(self, key: str, timeout: float | None = None) -> bool:
        """As `wait_for_lock`."""
        deadline = _deadline(timeout)
        while self.is_locked(key):
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(POLL_S)
        return True

    def _try(self, key: str, holder: str) -> bool:
        with self._guard:
            if (key, holder) in self._held:
                return True
            descriptor = self._open(key)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            self._held[key, holder] = descriptor
            return True

    def _open(self, key: str) -> int:
        """Every lock has an open file description of its own: threads of one process exclude each other, too."""
        directory = self._directory()
        directory.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(key.encode()).hexdigest()  # keys may be paths
        return os.open(directory / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _deadline(timeout: float | None) -> float:
    return float("inf") if timeout is None else time.monotonic() + timeout
