"""What the values of bad rows are instead: nothing, another position's, another head's, or the right ones scaled."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch

#: rows that are looked up; more tell nothing new
_SAMPLE = 256


@dataclass(frozen=True)
class Moved:
    """Rows that hold the values of another position. `source`: position -> position whose values it holds;
    `offset`: the commonest `source - position`, `share` of the rows `looked_at` that have it."""

    source: dict[int, int]
    looked_at: int
    offset: int
    share: float


def unwritten(target: torch.Tensor, fp32: torch.Tensor) -> torch.Tensor:
    """(heads, positions) bool: rows that are all zero where the reference is not."""
    return (target == 0).all(-1) & (fp32 != 0).any(-1)


def common_factor(target: torch.Tensor, fp32: torch.Tensor, rows: torch.Tensor) -> tuple[float, float]:
    """(factor s that minimises |t - s f| over `rows`, share of the squared error that it removes).

    `rows` (heads, positions) bool. (1, 0) where there is nothing to fit. s = t.f / f.f, least squares.
    """
    t, f = target[rows].double(), fp32[rows].double()
    error = float((t - f).square().sum())
    size = float(f.square().sum())
    if not error > 0 or not size > 0:
        return 1.0, 0.0
    factor = float((t * f).sum()) / size
    return factor, 1.0 - float((t - factor * f).square().sum()) / error


def moved_rows(
    target: torch.Tensor, fp32: torch.Tensor, heads: torch.Tensor, positions: torch.Tensor, share: float
) -> Moved | None:
    """Which other position's values the rows at `positions` hold, looking at `heads` (bool) together; None if none.

    A row matches another position when that explains `share` of its squared error. The offset with most matches is
    preferred, since equal tokens may have equal rows.
    """
    if not len(positions) or fp32.shape[1] < 2:
        return None
    picked = positions[:_SAMPLE]
    t = target[heads][:, picked].transpose(0, 1).flatten(1).double()
    f = fp32[heads].transpose(0, 1).flatten(1).double()
    distance = torch.cdist(t, f, compute_mode="donot_use_mm_for_euclid_dist").square()
    own = distance.gather(1, picked[:, None])
    close = distance <= (1 - share) * own
    close &= own > 0
    close[torch.arange(len(picked)), picked] = False
    where, source = close.nonzero(as_tuple=True)
    if not len(where):
        return None
    offsets = Counter((source - picked[where]).tolist())
    offset = min(offsets, key=lambda d: (-offsets[d], abs(d)))
    found: dict[int, int] = {}
    for row, position in zip(where.tolist(), source.tolist(), strict=True):
        at = int(picked[row])
        nearer = at not in found or float(distance[row, position]) < float(distance[row, found[at]])
        if position - at == offset or (found.get(at, at) - at != offset and nearer):
            found[at] = position
    return Moved(found, len(picked), offset, offsets[offset] / len(picked))


def swapped_heads(
    target: torch.Tensor, fp32: torch.Tensor, heads: list[int], present: torch.Tensor, share: float
) -> dict[int, int]:
    """Bad head -> other head whose values it holds at all present positions."""
    found: dict[int, int] = {}
    for head in heads:
        t = target[head, present].double()
        distance = (fp32[:, present].double() - t).square().sum((-1, -2))
        own = float(distance[head])
        distance[head] = float("inf")
        other = int(distance.argmin())
        if float(distance[other]) <= (1 - share) * own:
            found[head] = other
    return found
