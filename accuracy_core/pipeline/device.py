"""Waiting for device cores, visibly: whoever waits is told who holds them."""

from __future__ import annotations

import time

from accuracy_core.engines.cores import CoreLease, holders, lease_cores
from accuracy_core.errors import DeviceBusyError
from accuracy_core.pipeline import progress
from accuracy_core.schemas import EngineSpec

#: how often somebody who waits is told who holds the cores now
TELL_S = 30.0


def wait_for_cores(spec: EngineSpec, stage: str, *, timeout_s: float, note: str) -> CoreLease:
    """The cores that `spec` needs. While others hold them, `stage` reports who. Errors as `acquire_cores`."""
    deadline = time.monotonic() + timeout_s
    try:
        return lease_cores(spec, timeout_s=0, note=note)
    except DeviceBusyError:
        if timeout_s <= 0:
            raise
    while True:
        progress.report(stage, message=f"waiting for the device: {_who(spec)}")
        left = deadline - time.monotonic()
        try:
            return lease_cores(spec, timeout_s=max(0.0, min(TELL_S, left)), note=note)
        except DeviceBusyError as error:
            if left <= TELL_S:
                raise _in_all(error, timeout_s) from None


def _who(spec: EngineSpec) -> str:
    return "; ".join(str(holder) for holder in holders(spec.platform)) or "just freed"


def _in_all(error: DeviceBusyError, timeout_s: float) -> DeviceBusyError:
    """The error of the last try, about the whole wait."""
    head, _, rest = error.message.partition(" s;")
    return DeviceBusyError(f"{head.rsplit(' ', 1)[0]} {timeout_s:.0f} s;{rest}", fix=error.fix)
