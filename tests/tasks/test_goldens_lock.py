"""Locks for Prefect: exclusive between holders, threads and processes; gone with the process that held them."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from prefect.locking.protocol import LockManager

from tasks.goldens_lock import FlockLockManager

KEY = "s3-bucket/some/../key"


class Folder:
    """A directory that can be pickled with the manager."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self) -> Path:
        return self.path


@pytest.fixture
def locks(tmp_path: Path) -> FlockLockManager:
    return FlockLockManager(Folder(tmp_path / "locks"))


def test_it_is_what_prefect_asks_for(locks: FlockLockManager) -> None:
    assert isinstance(locks, LockManager)


def test_one_holder_at_a_time(locks: FlockLockManager, tmp_path: Path) -> None:
    assert locks.acquire_lock(KEY, "a")
    assert locks.acquire_lock(KEY, "a")  # again, by the same holder
    assert not locks.acquire_lock(KEY, "b", acquire_timeout=0)
    assert not asyncio.run(locks.aacquire_lock(KEY, "b", acquire_timeout=0.05))
    assert locks.is_locked(KEY)
    assert locks.is_lock_holder(KEY, "a")
    assert not locks.is_lock_holder(KEY, "b")
    assert not locks.wait_for_lock(KEY, timeout=0.05)
    assert locks.acquire_lock("other", "b", acquire_timeout=0)
    with pytest.raises(ValueError, match="holds no lock"):
        locks.release_lock(KEY, "b")
    locks.release_lock(KEY, "a")
    assert not locks.is_locked(KEY)
    assert locks.wait_for_lock(KEY, timeout=0)
    assert asyncio.run(locks.await_for_lock(KEY, timeout=0))
    assert locks.acquire_lock(KEY, "b", acquire_timeout=0)
    assert {path.parent for path in tmp_path.rglob("*.lock")} == {tmp_path / "locks"}  # no key leads elsewhere


def test_threads_wait_for_each_other(locks: FlockLockManager) -> None:
    inside, most = [0], [0]

    def work(name: str) -> None:
        locks.acquire_lock(KEY, name)
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.01)
        inside[0] -= 1
        locks.release_lock(KEY, name)

    threads = [threading.Thread(target=work, args=(str(index),)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most == [1]


def test_killed_holder_holds_nothing(locks: FlockLockManager, tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from tasks.goldens_lock import FlockLockManager\n"
        f"FlockLockManager(lambda: Path({str(tmp_path / 'locks')!r})).acquire_lock({KEY!r}, 'a')\n"
        "print('held', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    assert locks.is_locked(KEY)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert locks.acquire_lock(KEY, "b", acquire_timeout=0)


def test_copies_share_locks_and_pickles_hold_none(locks: FlockLockManager) -> None:
    locks.acquire_lock(KEY, "a")
    assert copy.deepcopy(locks) is locks
    sent = pickle.loads(pickle.dumps(locks))
    assert not sent.is_lock_holder(KEY, "a")
    assert sent.is_locked(KEY)
