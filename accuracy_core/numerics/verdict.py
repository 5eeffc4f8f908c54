"""Routes and guards to a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from accuracy_core.outcome import Verdict
from accuracy_core.schemas import GuardHit, RouteResult


def documented_rule(routes: Iterable[RouteResult]) -> bool:
    """The documented OR: any route that was measured and passed."""
    return any(r.passed is True for r in routes)


def verdict(documented: bool, guards: Sequence[GuardHit], *, rescue: str = "guarded") -> Verdict:
    """`pass` when the documented rule holds and no guard fired, `suspect` when only a guard objects, else `fail`.

    `rescue="documented"` leaves the guards out of it, for comparison with older reports.
    """
    if not documented:
        return Verdict.FAIL
    return Verdict.SUSPECT if guards and rescue != "documented" else Verdict.PASS
