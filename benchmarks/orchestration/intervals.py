"""When engines ran, by their own log."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path


@dataclass(frozen=True)
class Interval:
    """One engine's life on one core, in seconds since the epoch, by the engine's own clock."""

    pid: int
    core: str
    start: float
    end: float


def read_intervals(log: Path) -> list[Interval]:
    """Lives of the engines that wrote `log`. Raises ValueError for one without an end."""
    starts: dict[int, tuple[str, float]] = {}
    found = []
    for line in log.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["event"] == "start":
            starts[event["pid"]] = (event["core"], event["time"])
        else:
            core, began = starts.pop(event["pid"])
            found.append(Interval(event["pid"], core, began, event["time"]))
    if starts:
        raise ValueError(f"engines without an end: {sorted(starts)}")
    return found


def overlaps(intervals: list[Interval]) -> list[tuple[Interval, Interval]]:
    """Pairs that were on one core at the same time."""
    found = []
    for core in {interval.core for interval in intervals}:
        ordered = sorted((one for one in intervals if one.core == core), key=lambda one: one.start)
        found += [(first, second) for first, second in pairwise(ordered) if second.start < first.end]
    return found
