"""Live progress: stages report, whoever shows it listens."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """`done` of `total` units of `stage`; total 0 means: not known yet."""

    stage: str
    done: int
    total: int
    message: str = ""


Listener = Callable[[Event], None]
_listeners: list[Listener] = []


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """`listener` hears every event inside the `with` block."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def report(stage: str, done: int = 0, total: int = 0, message: str = "") -> None:
    """Tell all listeners. Costs nothing when nobody listens."""
    event = Event(stage, done, total, message)
    for listener in tuple(_listeners):
        listener(event)


def reporter(stage: str) -> Callable[[int, int], None]:
    """A `(done, total)` callback that reports for `stage`."""
    return lambda done, total: report(stage, done, total)
