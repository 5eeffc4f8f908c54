"""Leases on a real S3 server. "Hosts" are processes, or threads, with cache directories of their own."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from accuracy_core.goldens import get_or_compute_goldens, get_or_compute_many, s3
from accuracy_core.goldens.location import LEASE_VARIABLE

from .helpers import CONFIG, KEY, Compute, equal
from .s3_server import NEEDS_SERVER, READER, FaultProxy, sign_in

pytestmark = NEEDS_SERVER
FORK = multiprocessing.get_context("fork")


def derived(nonce: int) -> torch.Tensor:
    return torch.randn(50, 40, generator=torch.Generator().manual_seed(nonce))


def ask(cache: Path, uri: str, log: Path, report: Path, hold_s: float) -> None:
    """In a child: every computation writes a line to `log`; the golden is checked and reported."""

    def compute() -> dict[str, list[torch.Tensor]]:
        nonce = int.from_bytes(os.urandom(4), "big")
        with log.open("a") as file:
            file.write(f"{nonce}\n")
        time.sleep(hold_s)
        return {"nonce": [torch.tensor([nonce])], "rows": [derived(nonce)]}

    golden = get_or_compute_goldens(CONFIG, compute, cache_dir=cache, s3_uri=uri, lock_timeout_s=120)
    sound = torch.equal(golden["rows"][0], derived(int(golden["nonce"][0]))) and not golden.warnings
    report.write_text(f"{golden.source} {int(golden['nonce'][0])} {'sound' if sound else 'BAD'}")
    os._exit(0)


@pytest.fixture
def start(tmp_path: Path, uri: str) -> Callable[..., Any]:
    def run(name: str, hold_s: float = 0.0) -> Any:
        arguments = (tmp_path / name, uri, tmp_path / "log", tmp_path / f"{name}.report", hold_s)
        process = FORK.Process(target=ask, args=arguments, daemon=True)
        process.start()
        return process

    return run


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_host_computes_the_other_adopts(
    start: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LEASE_VARIABLE, "4")  # shorter than the computation: it has to be renewed
    first = start("a", hold_s=6)
    wait_for(tmp_path / "log")
    others = [start("b"), start("c")]
    for process in (first, *others):
        process.join(60)
        assert process.exitcode == 0
    assert len((tmp_path / "log").read_text().split()) == 1
    results = [(tmp_path / f"{name}.report").read_text().split() for name in "abc"]
    assert [result[0] for result in results] == ["computed", "s3", "s3"]
    assert {result[2] for result in results} == {"sound"}
    assert len({result[1] for result in results}) == 1


def test_lease_of_a_killed_host_runs_out(
    start: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LEASE_VARIABLE, "3")
    victim = start("a", hold_s=120)
    wait_for(tmp_path / "log")
    survivors = [start("b", hold_s=1), start("c", hold_s=1)]
    survivors[0].join(1)
    assert len((tmp_path / "log").read_text().split()) == 1  # they wait
    os.kill(victim.pid, signal.SIGKILL)
    victim.join(60)
    for process in survivors:
        process.join(60)
        assert process.exitcode == 0
    results = [(tmp_path / f"{name}.report").read_text().split() for name in "bc"]
    assert sorted(result[0] for result in results) == ["computed", "s3"]
    assert len({result[1] for result in results}) == 1
    assert len((tmp_path / "log").read_text().split()) == 2


def test_failed_computation_gives_the_lease_back_at_once(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LEASE_VARIABLE, "3600")
    began, results = threading.Event(), []

    def fail() -> Any:
        began.set()
        time.sleep(0.5)
        raise RuntimeError("out of luck")

    def first() -> None:
        with pytest.raises(RuntimeError, match="out of luck"):
            get_or_compute_goldens(CONFIG, fail, cache_dir=tmp_path / "a", s3_uri=uri)

    thread = threading.Thread(target=first)
    thread.start()
    assert began.wait(60)
    results.append(get_or_compute_goldens(CONFIG, Compute(), cache_dir=tmp_path / "b", s3_uri=uri))
    thread.join(60)
    assert equal(results[0], Compute().tensors())
    assert (results[0].source, results[0].warnings) == ("computed", ())


def test_overlapping_sets_are_shared_out(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each host computes what it got the lease of, then takes the rest from the other."""
    monkeypatch.setenv(LEASE_VARIABLE, "60")
    configs = [{**CONFIG, "n": n} for n in range(6)]
    computed: dict[str, list[int]] = {"a": [], "b": []}
    results: dict[str, Any] = {}
    barrier = threading.Barrier(2)

    def run(name: str, part: list[int]) -> None:
        def compute(indices: list[int]) -> Any:
            barrier.wait(60)
            computed[name] += [part[index] for index in indices]
            for index in indices:
                time.sleep(0.2)
                yield Compute(seed=part[index]).tensors()

        results[name] = get_or_compute_many([configs[n] for n in part], compute, cache_dir=tmp_path / name, s3_uri=uri)

    sets = {"a": [0, 1, 2, 3], "b": [5, 4, 3, 2]}
    threads = [threading.Thread(target=run, args=item) for item in sets.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(computed["a"] + computed["b"]) == [0, 1, 2, 3, 4, 5]
    for name, part in sets.items():
        assert all(equal(g, Compute(seed=n).tensors()) for g, n in zip(results[name], part, strict=True))
        assert not results[name][0].warnings


def test_server_that_ignores_conditions(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both compute, both are sound. The conditions are dropped before a request is signed."""
    monkeypatch.setenv(LEASE_VARIABLE, "60")
    original, dropped = s3.new_client, []

    def drop(request: Any, **_: Any) -> None:
        for name in ("If-None-Match", "If-Match"):
            if name in request.headers:
                del request.headers[name]
                dropped.append(name)

    def deaf(*arguments: Any) -> Any:
        made = original(*arguments)
        made.meta.events.register_first("before-sign.s3", drop)
        return made

    monkeypatch.setattr(s3, "new_client", deaf)
    monkeypatch.setattr(s3, "_clients", {})
    barrier, results = threading.Barrier(2), {}

    def run(seed: int) -> None:
        def compute() -> Any:
            barrier.wait(60)
            return Compute(seed=seed).tensors()

        results[seed] = get_or_compute_goldens(CONFIG, compute, cache_dir=tmp_path / str(seed), s3_uri=uri)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert dropped
    sound = [Compute(seed=seed).tensors() for seed in range(2)]
    assert all(any(equal(golden, good) for good in sound) for golden in results.values())
    later = get_or_compute_goldens(CONFIG, Compute(), cache_dir=tmp_path / "later", s3_uri=uri)
    assert later.source == "s3"
    assert any(equal(later, good) for good in sound)


def test_host_that_may_only_read_computes(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEASE_VARIABLE, "60")
    sign_in(monkeypatch, READER)
    golden = get_or_compute_goldens(CONFIG, Compute(), cache_dir=tmp_path / "a", s3_uri=uri)
    assert equal(golden, Compute().tensors())
    assert len(golden.warnings) == 1
    assert "AccessDenied" in golden.warnings[0]


@pytest.mark.parametrize("fault", ["501", "403"])
def test_store_without_leases_still_takes_goldens(
    fault: str, uri: str, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LEASE_VARIABLE, "60")
    leases: list[str] = []

    def rule(_: str, path: str, __: int) -> str | None:
        if "/leases/" in path:
            leases.append(path)
            return fault
        return None

    proxy.rule = rule
    for number in range(3):
        config = {**CONFIG, "n": number}
        golden = get_or_compute_goldens(config, Compute(), cache_dir=tmp_path / "a", s3_uri=uri)
        assert (golden.source, golden.warnings) == ("computed", ())
        assert get_or_compute_goldens(config, pytest.fail, cache_dir=tmp_path / "b", s3_uri=uri).source == "s3"
    assert len(set(leases)) == 1  # asked for once, however often that was tried


def test_faulty_leases_fail_no_run(
    uri: str, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LEASE_VARIABLE, "60")
    faults = ["503", "500", "reset", "lost", "flip", "cut"]
    for number, fault in enumerate(faults):
        monkeypatch.setattr(s3, "_breakers", {})
        proxy.rule = lambda _, path, __, fault=fault: fault if "/leases/" in path else None
        golden = get_or_compute_goldens(
            {**CONFIG, "n": number}, Compute(seed=number), cache_dir=tmp_path / "a", s3_uri=uri
        )
        assert equal(golden, Compute(seed=number).tensors())
        assert golden.source == "computed"


def test_leases_are_no_goldens(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEASE_VARIABLE, "60")
    get_or_compute_goldens(CONFIG, Compute(), cache_dir=tmp_path / "a", s3_uri=uri)
    tier = s3.s3_tier(uri, pytest.fail)
    assert isinstance(tier, s3.S3Tier)
    assert tier.keys() == [KEY]
    lease = tier.read_lease(KEY)
    assert lease is not None
    assert json.loads(lease[1])["holder"] == ""
