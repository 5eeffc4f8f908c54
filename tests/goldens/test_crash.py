"""kill -9 at random points: the lock is free at once, no half entry is ever served, every survivor gets one golden.

Every computation draws its own nonce and derives all tensors from it: a golden that mixes two writers, or was cut off,
cannot pass the check.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch

from accuracy_core.goldens import get_or_compute_goldens
from accuracy_core.goldens.disk import DiskTier
from accuracy_core.goldens.entry import open_entry

FORK = multiprocessing.get_context("fork")
KILLS = 16
MOST_ROUNDS = 60
ROWS, COLUMNS = 400, 5000  # 8 MB: long enough to be killed while it is written


def derived(nonce: int) -> torch.Tensor:
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(nonce))


def ask(cache: Path, round_name: str, began: Path, report: Path, hold_s: float) -> None:
    """Runs in a child: ask for the golden, check it, report `source nonce good|BAD`. `hold_s`: time to compute."""

    def compute() -> dict[str, list[torch.Tensor]]:
        nonce = int.from_bytes(os.urandom(4), "big")
        with began.open("a") as file:
            file.write(f"{nonce}\n")
        time.sleep(hold_s)
        return {"nonce": [torch.tensor([nonce])], "rows": [derived(nonce)]}

    golden = get_or_compute_goldens({"round": round_name}, compute, cache_dir=cache, lock_timeout_s=60)
    nonce = int(golden["nonce"][0])
    good = torch.equal(golden["rows"][0], derived(nonce)) and not golden.warnings
    report.write_text(f"{golden.source} {nonce} {'good' if good else 'BAD'}")
    os._exit(0)


def start(cache: Path, round_name: str, began: Path, report: Path, hold_s: float = 0.0) -> BaseProcess:
    process = FORK.Process(target=ask, args=(cache, round_name, began, report, hold_s), daemon=True)
    process.start()
    return process


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, "no process began to compute"
        time.sleep(0.001)


def kill(process: BaseProcess) -> bool:
    """True if the process was still at work."""
    assert process.pid is not None
    working = process.exitcode is None
    if working:
        os.kill(process.pid, signal.SIGKILL)
    process.join(60)
    return working and process.exitcode == -signal.SIGKILL


@pytest.mark.slow
def test_killed_writers_leave_nothing_behind(cache: Path, tmp_path: Path) -> None:
    delays = random.Random(7)
    kills = rounds = 0
    while kills < KILLS:  # on a busy machine some finish before they can be killed
        number, rounds = rounds, rounds + 1
        assert rounds <= MOST_ROUNDS
        began, name = tmp_path / f"began-{number}", f"round {number}"
        victims = [start(cache, name, began, tmp_path / "victim") for _ in range(2)]
        wait_for(began)  # one of them computes from here on, the other waits for its lock
        for victim in victims:
            time.sleep(delays.uniform(0.0, 0.2))
            kills += kill(victim)
        reports = [tmp_path / f"report-{number}-{index}" for index in range(2)]
        survivors = [start(cache, name, began, report) for report in reports]
        for survivor in survivors:
            survivor.join(60)
            assert survivor.exitcode == 0
        results = [report.read_text().split() for report in reports]
        assert [result[2] for result in results] == ["good", "good"]
        assert len({result[1] for result in results}) == 1, "two goldens were served for one key"
        assert results[0][1] in began.read_text().split()
    disk = DiskTier(cache)
    assert len(disk.keys()) == rounds
    for folder in (cache / "objects").glob("??/*"):
        open_entry(folder, folder.name)
    disk.prepare()
    assert not list((cache / "tmp").iterdir())
    assert not list((cache / "quarantine").iterdir())


@pytest.mark.slow
def test_lock_excludes_while_its_holder_lives_and_is_free_when_it_is_killed(cache: Path, tmp_path: Path) -> None:
    began, report = tmp_path / "began", tmp_path / "report"
    holder = start(cache, "held", began, tmp_path / "victim", hold_s=120)
    wait_for(began)
    waiting = start(cache, "held", began, report)
    waiting.join(1.5)
    assert waiting.exitcode is None
    assert len(began.read_text().split()) == 1
    assert kill(holder)
    waiting.join(60)
    assert report.read_text().split()[::2] == ["computed", "good"]
