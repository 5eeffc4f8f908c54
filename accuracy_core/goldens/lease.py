"""Leases: one host computes a golden while the others wait for it. An optimisation only; any doubt means computing.

A lease is a small object beside the goldens, changed by compare-and-swap on its ETag. Its holder changes it at
intervals; who waits takes it over when it has stood still for the lease's time by the *waiter's own* monotonic clock:
no two clocks are ever compared. A holder that was killed merely stops changing it. Publishing goldens does not depend
on leases: two hosts that compute the same key still end up with one golden.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, Self

RENEWALS = 4  # per lease time
SHORTEST_POLL_S, LONGEST_POLL_S = 0.2, 4.0


class Turn(Enum):
    """Whether the caller computes: yes; yes unless the golden is in the shared store by now, since another host held
    this lease before; no, another host is at it."""

    OURS = "ours"
    OURS_IF_MISSING = "ours if missing"
    THEIRS = "theirs"


class LeaseSlots(Protocol):
    """Where leases lie. Both methods raise whatever goes wrong."""

    def read_lease(self, key: str) -> tuple[str, bytes] | None:
        """ETag and content; None if there never was one."""
        ...

    def write_lease(self, key: str, content: bytes, etag: str | None) -> str | None:
        """Replace the content that has `etag` (None: only if there is none) and return the new ETag; None if it was
        not so."""
        ...


@dataclass
class _Seen:
    """A lease of another host: its ETag, and since when it has had it."""

    etag: str
    since: float


class Leases:
    """Leases of one call, renewed in the background while the context is open and given back when it is left."""

    def __init__(
        self,
        slots: LeaseSlots,
        lease_s: float,
        doubt: Callable[[Exception], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._slots, self._lease_s, self._doubt = slots, lease_s, doubt
        self._clock, self._sleep = clock, sleep
        self._holder = uuid.uuid4().hex
        self._held: dict[str, str] = {}  # key -> ETag
        self._seen: dict[str, _Seen] = {}
        self._beats = 0
        self._usable = True
        self._guard, self._stop = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._renew_all, name="golden-leases", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for key in list(self._held):
            self.release(key)

    def claim(self, key: str) -> Turn:
        """Take the lease if it is free or has run out."""
        if not self._usable:
            return Turn.OURS
        try:
            return self._claim(key)
        except Exception as error:  # of the store, of any type
            self._usable = False
            self._doubt(error)
            return Turn.OURS

    def _claim(self, key: str) -> Turn:
        if key not in self._seen and self._take(key, None):
            return Turn.OURS
        lease = self._slots.read_lease(key)
        if lease is None:  # removed since: nobody's
            self._seen.pop(key, None)
            return Turn.OURS_IF_MISSING
        etag, content = lease
        holder = _holder(content)
        if holder == self._holder:  # one's own write, whose reply was lost
            self._keep(key, etag)
            return Turn.OURS_IF_MISSING
        seen = self._seen.get(key)
        if seen is None or seen.etag != etag:
            seen = self._seen[key] = _Seen(etag, self._clock())
        if (not holder or self._clock() - seen.since >= self._lease_s) and self._take(key, etag):
            return Turn.OURS_IF_MISSING
        return Turn.THEIRS

    def wait(self, keys: Iterable[str], timeout_s: float, look: Callable[[str], bool]) -> list[str]:
        """Wait for what other hosts compute; keys that are left for the caller to compute.

        `look(key)` tells whether the golden is in the shared store; it is asked when a lease was given back or ran out.
        After `timeout_s` whatever is missing is the caller's.
        """
        pending, due = list(keys), []
        end, pause = self._clock() + timeout_s, SHORTEST_POLL_S
        while pending:
            waiting = []
            for key in pending:
                if self.claim(key) is Turn.THEIRS and self._clock() < end:
                    waiting.append(key)
                elif look(key):
                    self.release(key)
                else:
                    due.append(key)
            pending = waiting
            if pending:
                self._sleep(pause)
                pause = min(pause * 1.5, LONGEST_POLL_S, self._lease_s / RENEWALS)
        return due

    def release(self, key: str) -> None:
        """Give the lease back, the golden being published or given up. Nothing happens if it is not held."""
        with self._guard:
            etag = self._held.pop(key, None)
            if etag is None or not self._usable:
                return
            try:
                self._slots.write_lease(key, self._content(""), etag)
            except Exception:  # it will run out
                self._usable = False

    def _take(self, key: str, etag: str | None) -> bool:
        new = self._slots.write_lease(key, self._content(self._holder), etag)
        if new is None:
            return False
        self._keep(key, new)
        return True

    def _keep(self, key: str, etag: str) -> None:
        with self._guard:
            self._held[key] = etag

    def _content(self, holder: str) -> bytes:
        self._beats += 1  # no two contents of one holder are the same, nor are their ETags
        return json.dumps({"holder": holder, "beat": self._beats, "lease_s": self._lease_s}).encode()

    def _renew_all(self) -> None:
        while not self._stop.wait(self._lease_s / RENEWALS):
            for key in list(self._held):
                with self._guard:
                    if key in self._held:
                        self._renew(key)

    def _renew(self, key: str) -> None:
        """A lease that another host took over is dropped; what is being computed under it is published all the same."""
        try:
            etag = self._slots.write_lease(key, self._content(self._holder), self._held[key])
            if etag is None:
                lease = self._slots.read_lease(key)
                etag = lease[0] if lease is not None and _holder(lease[1]) == self._holder else None
        except Exception:  # the next one may succeed; if none does, the lease runs out
            return
        if etag is None:
            del self._held[key]
        else:
            self._held[key] = etag


def _holder(content: bytes) -> str:
    """Who holds the lease; "" if nobody does, also if the content means nothing."""
    try:
        return str(json.loads(content)["holder"])
    except (ValueError, TypeError, LookupError, RecursionError):
        return ""
