"""Is it prefill, decode, or both? Read off the rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from accuracy_core.numerics.pooled import typical_ratio
from accuracy_core.schemas import GuardHit, Phase, RowMetrics, Tolerances

_SURE = 1.0  # standard errors above 1 before a part counts as affected beside one that is proven bad


@dataclass(frozen=True)
class Location:
    """`phase`, and the first generation index that is bad (None when none is)."""

    phase: Phase
    first_bad_token: int | None


def locate(
    rows: Sequence[RowMetrics], hits: Sequence[GuardHit], tolerances: Tolerances, *, failed: bool = False
) -> Location:
    """Where rows are bad, given the guards that fired on them or on groups of them (`hits`).

    Generation index 0 comes out of prefill, the later ones out of decode. A part is bad when a guard fired on one of
    its rows or generation indices. A hit that is about no single token (the whole run or prompt is too noisy) proves
    that something is bad, not where. In both cases the other part is then asked a milder question than "would it have
    been caught alone?": is its typical L2 ratio nearer to the proven part's than to a clean one's (in logs), and above
    what its few rows scatter by? With `failed` and no hit (no route passed, no guard objects) the noisier part stands
    for the proven one if it is noisier than BF16 at all; else, and without ratios, the rows beyond the static two-way
    limits do.
    """
    hits = [h for h in hits if h.guard != "missing_tokens"]
    if not rows or not (hits or failed):
        return Location(Phase.NONE, None)
    first, later = _part(rows, tolerances, prefill=True), _part(rows, tolerances, prefill=False)
    named = {h.token for h in hits if h.token >= 0}
    if not hits and not max(first.above, later.above) > 1:
        named = {r.token for r in rows if not r.two_way_passed}
        if not named:
            return Location(Phase.NONE, None)
    sure_first, sure_later = 0 in named, any(t > 0 for t in named)
    if not named:  # only groups over many tokens: the noisier part is the proven one
        sure_first = not later.rows or first.above >= later.above
        sure_later = not sure_first
    bad_first = sure_first or (sure_later and first.resembles(later))
    bad_later = sure_later or (sure_first and later.resembles(first))
    if bad_first:
        return Location(Phase.BOTH if bad_later else Phase.PREFILL, 0)
    return Location(Phase.DECODE, min((t for t in named if t > 0), default=_first_noisy(rows, later, tolerances)))


@dataclass(frozen=True)
class _Part:
    rows: int
    typical: float
    scatter: float

    @property
    def above(self) -> float:
        """Typical ratio over what scatter alone reaches; 0 where nothing was measured."""
        if not self.rows or math.isnan(self.typical):
            return 0.0
        return self.typical / math.exp(_SURE * self.scatter)

    def resembles(self, proven: _Part) -> bool:
        """Nearer to the proven part than to a clean one, and above its own scatter."""
        if not self.rows or math.isnan(self.typical):
            return False
        halfway = math.sqrt(proven.typical) if proven.typical > 1 else 1.0
        return self.typical > max(halfway, math.exp(_SURE * self.scatter))


def _part(rows: Sequence[RowMetrics], tolerances: Tolerances, *, prefill: bool) -> _Part:
    ratio = [r.l2_ratio for r in rows if (r.token == 0) == prefill and not math.isnan(r.l2_ratio)]
    guards = tolerances.guards
    typical = typical_ratio(torch.tensor(ratio, dtype=torch.float64), guards.l2_ratio)
    return _Part(len(ratio), typical, guards.row_log_spread / math.sqrt(max(len(ratio), 1)))


def _first_noisy(rows: Sequence[RowMetrics], part: _Part, tolerances: Tolerances) -> int | None:
    """First decode index whose typical ratio is as high as the part's, when no guard names one."""
    for token in sorted({r.token for r in rows if r.token > 0}):
        ratio = torch.tensor([r.l2_ratio for r in rows if r.token == token], dtype=torch.float64)
        if typical_ratio(ratio, tolerances.guards.l2_ratio) >= math.sqrt(max(part.typical, 1.0)):
            return token
    return None
