"""Leases: one host computes while others wait, a dead holder's lease runs out, and any doubt means computing."""

from __future__ import annotations

import json
import time

import pytest

from accuracy_core.errors import ConfigurationError
from accuracy_core.goldens import s3
from accuracy_core.goldens.lease import Leases, Turn
from accuracy_core.goldens.location import LEASE_VARIABLE, lease_seconds


class Memory:
    """Slots in memory. `honest` is whether conditions are heeded; the next `lost` writes are done and not confirmed."""

    def __init__(self) -> None:
        self.slots: dict[str, tuple[str, bytes]] = {}
        self.honest, self.lost, self.broken, self.calls = True, 0, False, 0

    def read_lease(self, key: str) -> tuple[str, bytes] | None:
        self._called()
        return self.slots.get(key)

    def write_lease(self, key: str, content: bytes, etag: str | None) -> str | None:
        self._called()
        there = self.slots.get(key)
        if self.honest and (there[0] if there else None) != etag:
            return None
        self.slots[key] = (f"etag of {content.decode()}", content)
        if self.lost:
            self.lost -= 1
            return None
        return self.slots[key][0]

    def _called(self) -> None:
        self.calls += 1
        if self.broken:
            raise ConnectionError("the store is gone")


class Clock:
    """Moves only when told to, or when somebody sleeps."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def memory() -> Memory:
    return Memory()


def host(memory: Memory, clock: Clock | None = None, lease_s: float = 60.0) -> Leases:
    """Leases of one host; nothing is renewed by itself since the context is not entered."""
    clock = clock or Clock()
    return Leases(memory, lease_s, pytest.fail, clock=clock, sleep=clock.sleep)


def no_golden(_: str) -> bool:
    return False


def test_one_holder_at_a_time(memory: Memory) -> None:
    first, second = host(memory), host(memory)
    assert first.claim("k") is Turn.OURS
    assert second.claim("k") is Turn.THEIRS
    assert second.claim("other") is Turn.OURS
    first.release("k")
    assert second.claim("k") is Turn.OURS_IF_MISSING  # the first one may have published it
    assert first.claim("k") is Turn.THEIRS


@pytest.mark.parametrize("offset", [0.0, 1e9, -1e9])
def test_lease_of_a_dead_holder_runs_out_by_the_clock_of_who_waits(offset: float, memory: Memory) -> None:
    assert host(memory, Clock()).claim("k") is Turn.OURS
    clock = Clock(offset)
    waiting = host(memory, clock)
    assert waiting.claim("k") is Turn.THEIRS
    clock.now += 59.9
    assert waiting.claim("k") is Turn.THEIRS
    clock.now += 0.2
    assert waiting.claim("k") is Turn.OURS_IF_MISSING


def test_renewed_lease_does_not_run_out(memory: Memory) -> None:
    clock, holder = Clock(), host(memory)
    waiting = host(memory, clock)
    holder.claim("k")
    for _ in range(20):
        assert waiting.claim("k") is Turn.THEIRS
        clock.now += 50
        holder._renew("k")
    assert waiting.claim("k") is Turn.THEIRS


def test_holder_that_was_taken_for_dead_leaves_the_new_one_alone(memory: Memory) -> None:
    clock, slow = Clock(), host(memory)
    waiting = host(memory, clock)
    slow.claim("k")
    waiting.claim("k")
    clock.now += 61
    assert waiting.claim("k") is Turn.OURS_IF_MISSING
    content = memory.slots["k"]
    slow._renew("k")
    slow.release("k")
    assert memory.slots["k"] == content


def test_of_several_that_wait_one_takes_over(memory: Memory) -> None:
    clock = Clock()
    host(memory).claim("k")
    waiting = [host(memory, clock) for _ in range(3)]
    assert {one.claim("k") for one in waiting} == {Turn.THEIRS}
    clock.now += 61
    assert [one.claim("k") for one in waiting] == [Turn.OURS_IF_MISSING, Turn.THEIRS, Turn.THEIRS]


def test_write_whose_reply_was_lost_is_ones_own(memory: Memory) -> None:
    holder = host(memory)
    memory.lost = 1
    assert holder.claim("k") is Turn.OURS_IF_MISSING
    memory.lost = 1
    holder._renew("k")
    holder._renew("k")
    assert host(memory).claim("k") is Turn.THEIRS
    holder.release("k")
    assert host(memory).claim("k") is Turn.OURS_IF_MISSING


def test_any_doubt_means_computing(memory: Memory) -> None:
    doubts: list[Exception] = []
    leases = Leases(memory, 60, doubts.append)
    host(memory).claim("theirs")
    memory.broken = True
    assert leases.claim("theirs") is Turn.OURS
    calls = memory.calls
    assert leases.claim("k") is Turn.OURS
    assert leases.wait(["theirs", "k"], 60, no_golden) == ["theirs", "k"]
    leases.release("k")
    assert (memory.calls, len(doubts)) == (calls, 1)  # the store was not asked again


def test_store_that_ignores_conditions_gives_everybody_the_lease(memory: Memory) -> None:
    memory.honest = False
    assert [host(memory).claim("k") for _ in range(2)] == [Turn.OURS, Turn.OURS]


@pytest.mark.parametrize("content", [b"", b"junk", b"[]", b'{"holder": ""}', b"\xff"])
def test_content_that_names_nobody_is_a_free_lease(content: bytes, memory: Memory) -> None:
    memory.slots["k"] = ("1", content)
    assert host(memory).claim("k") is Turn.OURS_IF_MISSING


def test_waiting_ends_with_the_golden_the_lease_or_the_time(memory: Memory) -> None:
    clock, holder = Clock(), host(memory)
    for key in ("published", "failed", "hanging"):
        holder.claim(key)
    waiting = host(memory, clock, lease_s=1e6)
    assert {waiting.claim(key) for key in ("published", "failed", "hanging")} == {Turn.THEIRS}
    looked: list[str] = []

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        holder.release("published" if clock.now < 10 else "failed")

    def look(key: str) -> bool:
        looked.append(key)
        return key == "published"

    waiting._sleep = sleep
    assert waiting.wait(["published", "failed", "hanging"], 100, look) == ["failed", "hanging"]
    assert looked == ["published", "failed", "hanging"]  # asked only when there is reason to
    assert 100 <= clock.now < 110
    assert host(memory).claim("published") is Turn.OURS_IF_MISSING  # given back


def test_lease_that_was_removed_is_free(memory: Memory) -> None:
    host(memory).claim("k")
    waiting = host(memory)
    assert waiting.claim("k") is Turn.THEIRS
    memory.slots.clear()
    assert waiting.claim("k") is Turn.OURS_IF_MISSING


def test_leases_are_renewed_and_given_back(memory: Memory) -> None:
    with Leases(memory, 0.08, pytest.fail) as leases:
        leases.claim("k")
        first = memory.slots["k"]
        deadline = time.monotonic() + 30
        while memory.slots["k"] == first:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert json.loads(memory.slots["k"][1])["holder"]
    assert json.loads(memory.slots["k"][1])["holder"] == ""


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "1e9", "sixty"])
def test_bad_lease_time(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEASE_VARIABLE, value)
    with pytest.raises(ConfigurationError, match=LEASE_VARIABLE):
        lease_seconds()


def test_leases_are_off_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    tier = s3.s3_tier("s3://bucket/x", pytest.fail)
    assert tier is not None
    assert tier.leases() is None
    monkeypatch.setenv(LEASE_VARIABLE, "60")
    tier = s3.s3_tier("s3://bucket/x", pytest.fail)
    assert tier is not None
    assert tier.leases() is not None
