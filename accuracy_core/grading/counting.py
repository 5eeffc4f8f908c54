"""How many kernels a step launches, and how much of its time the longest one takes, from what the profiler recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from accuracy_core.errors import ConfigurationError, NotMeasuredError

#: names of the profiler's own marks, which are no work
_MARKS = ("ProfilerStep", "[")
_COPIES = ("Memcpy", "Memset")


@dataclass(frozen=True)
class Event:
    """One operator or kernel. Times in ns; `thread` is the one that ran it, `on_device` False for the host's."""

    name: str
    start: int
    duration: int
    thread: int = 0
    on_device: bool = False


@dataclass(frozen=True)
class StepCount:
    """Of one step. `longest` and `total` in ns: own time of the longest operator (kernel), and of all."""

    launches: int
    longest: int
    total: int
    dominant: str

    @property
    def dominant_share(self) -> float:
        return self.longest / self.total if self.total else 0.0


def count_operators(events: Sequence[Event]) -> StepCount:
    """On a CPU: operators that call no other one, in every thread.

    A step registered as one custom operator counts one. Whatever operators are called inside it are seen as well, for
    the profiler records each dispatch: wrapping many in one lowers nothing. Raises NotMeasuredError for no operator.
    """
    work = [event for event in events if not event.on_device and not event.name.startswith(_MARKS)]
    if not work:
        raise NotMeasuredError("no operator was seen during a step: its work cannot be counted")
    own = _own_times(work)
    longest, name = max((time, event.name) for event, time, _ in own)
    leaves = sum(leaf for _, _, leaf in own)
    return StepCount(leaves, longest, sum(time for _, time, _ in own), name)


def count_kernels(events: Sequence[Event]) -> StepCount:
    """On CUDA: kernels on the device. Replaying a captured graph lowers nothing. Raises NotMeasuredError for none."""
    kernels = [event for event in events if event.on_device and not event.name.startswith(_COPIES)]
    if not kernels:
        raise NotMeasuredError("no kernel was seen on the device during a step: its work cannot be counted")
    longest = max(kernels, key=lambda event: event.duration)
    return StepCount(len(kernels), longest.duration, sum(event.duration for event in kernels), longest.name)


def _own_times(events: Sequence[Event]) -> list[tuple[Event, int, bool]]:
    """(event, its time without its children's, whether it has none). Children lie within it, in the same thread."""
    children = [0] * len(events)
    leaf = [True] * len(events)
    open_: dict[int, list[int]] = {}
    for index in sorted(range(len(events)), key=lambda i: (events[i].start, -events[i].duration)):
        event, above = events[index], open_.setdefault(events[index].thread, [])
        while above and events[above[-1]].start + events[above[-1]].duration < event.start + event.duration:
            above.pop()
        if above:
            children[above[-1]] += event.duration
            leaf[above[-1]] = False
        above.append(index)
    return [(event, max(0, event.duration - children[i]), leaf[i]) for i, event in enumerate(events)]


COUNTERS: dict[str, Callable[[Sequence[Event]], StepCount]] = {"cpu": count_operators, "cuda": count_kernels}


def counter(name: str) -> Callable[[Sequence[Event]], StepCount]:
    """Raises ConfigurationError for a counter that does not exist."""
    if name not in COUNTERS:
        raise ConfigurationError(f"unknown counter {name!r}", fix=f"known: {', '.join(COUNTERS)}")
    return COUNTERS[name]
