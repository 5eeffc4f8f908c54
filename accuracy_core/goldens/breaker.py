"""A circuit breaker: a dead shared store costs one time-out, not one per prompt."""

from __future__ import annotations

import time


class Breaker:
    """Open for `pause_s` seconds after a failure. For good: `writable` is false when a put was denied,
    `leasable` when the store has no leases to give."""

    def __init__(self, pause_s: float) -> None:
        self.pause_s = pause_s
        self.writable = True
        self.leasable = True
        self._open_until = float("-inf")

    @property
    def closed(self) -> bool:
        """True while the store may be asked."""
        return time.monotonic() >= self._open_until

    def trip(self) -> None:
        self._open_until = time.monotonic() + self.pause_s
