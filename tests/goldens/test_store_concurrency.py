"""One computation of a key at a time, whoever asks: processes, threads, overlapping sets."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from accuracy_core.goldens import get_or_compute_goldens, get_or_compute_many
from accuracy_core.goldens.disk import DiskTier

from .helpers import CONFIG, KEY, Compute, equal


def _compute_slowly(cache: Path, log: Path, barrier: Any) -> None:
    def compute() -> dict[str, list[torch.Tensor]]:
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(0.5)
        return Compute().tensors()

    barrier.wait()
    golden = get_or_compute_goldens(CONFIG, compute, cache_dir=cache)
    assert equal(golden, Compute().tensors())
    os._exit(0 if golden.source in ("computed", "disk") else 1)


def test_two_processes_compute_once(cache: Path, tmp_path: Path) -> None:
    context, log = multiprocessing.get_context("fork"), tmp_path / "log"
    barrier = context.Barrier(2)
    processes = [context.Process(target=_compute_slowly, args=(cache, log, barrier), daemon=True) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(log.read_text().splitlines()) == 1


def test_threads_compute_once(cache: Path) -> None:
    compute, results = Compute(), []

    def slow() -> dict[str, list[torch.Tensor]]:
        time.sleep(0.2)
        return compute()

    threads = [
        threading.Thread(target=lambda: results.append(get_or_compute_goldens(CONFIG, slow, cache_dir=cache)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert compute.calls == 1
    assert sorted(golden.source for golden in results) == ["computed", "disk", "disk", "disk"]


def test_overlapping_sets_in_opposite_order_do_not_deadlock(cache: Path) -> None:
    configs = [{**CONFIG, "n": n} for n in range(6)]
    calls: list[int] = []

    def compute(indices: list[int]) -> Any:
        calls.extend(indices)
        time.sleep(0.1)
        return (Compute().tensors() for _ in indices)

    threads = [
        threading.Thread(target=get_or_compute_many, args=(part, compute), kwargs={"cache_dir": cache})
        for part in (configs, configs[::-1], configs[2:], configs[:4][::-1])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert len(calls) == 6


def test_lock_held_for_too_long_means_computing_anyway(cache: Path, warnings: pytest.LogCaptureFixture) -> None:
    disk = DiskTier(cache)
    disk.prepare()
    with disk.locked([KEY], timeout_s=1, warn=pytest.fail):
        golden = get_or_compute_goldens(CONFIG, Compute(), cache_dir=cache, lock_timeout_s=0.1)
    assert golden.source == "computed"
    assert "locked by another process" in warnings.text
