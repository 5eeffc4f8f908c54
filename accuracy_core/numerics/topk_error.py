"""Two-way top-k error: the documented static check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from accuracy_core.numerics.leaders import Leaders, best_entries, lowest_id_first
from accuracy_core.numerics.shift import Difference
from accuracy_core.numerics.tolerance_map import TopK

_KEPT = 5


@dataclass(frozen=True)
class Extremes:
    """Per slice of the tolerance map, (rows, slices): `error` = max over S_k of |t - e|, `size` = max over S_k of |e|.

    `top` are the five largest expected logits (fewer in a smaller vocabulary).
    """

    error: torch.Tensor
    size: torch.Tensor
    top: Leaders


def slice_extremes(e: torch.Tensor, difference: Difference, slices: Sequence[TopK], lowest: torch.Tensor) -> Extremes:
    """Largest error and size in each slice.

    `S_k` are the k largest entries of `e` (rows, vocab), all of them when k reaches the vocabulary; masked entries
    (-inf) have no size. `difference` is `t - e`, infinite in columns that only the target has not; `lowest` (rows,) is
    the smallest finite entry of e.
    """
    vocab = e.shape[1]
    wanted = sorted({min(s.k, vocab) for s in slices if s.k is not None and s.k < vocab} | {min(_KEPT, vocab)})
    values, ids = best_entries(e, wanted[-1])
    errors = (difference.values.gather(-1, ids) - difference.shift).abs_()
    found: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    kept = None
    for k in reversed(wanted):  # each set is picked from the next larger one
        if k < values.shape[1] or k == wanted[0]:
            values, at = values.topk(k, dim=-1)
            ids, errors = ids.gather(-1, at), errors.gather(-1, at)
        found[k] = errors.amax(-1), values.abs().masked_fill(values.isinf(), 0).amax(-1)
        if k >= min(_KEPT, vocab):
            kept = values, ids
    assert kept is not None
    order = kept[0].topk(min(_KEPT, vocab), dim=-1)
    top = lowest_id_first(e, order.values, kept[1].gather(-1, order.indices))
    shift = difference.shift.squeeze(-1)
    whole = (
        torch.maximum(difference.values.amax(-1) - shift, shift - difference.values.amin(-1)),
        torch.maximum(top.values[:, 0].abs(), lowest.abs()),
    )
    pairs = [whole if s.k is None or s.k >= vocab else found[s.k] for s in slices]
    return Extremes(torch.stack([p[0] for p in pairs], -1), torch.stack([p[1] for p in pairs], -1), top)


def topk_errors(error: torch.Tensor, size: torch.Tensor, slices: Sequence[TopK]) -> torch.Tensor:
    """`err_k = (max over S_k |t - e| - atol) / max over S_k |e|` from the extremes, (rows, slices), in float64.

    Where `max |e|` is 0 the error is 0 if it is within atol, else infinite.
    """
    excess = error.double() - torch.tensor([s.atol for s in slices], dtype=torch.float64, device=error.device)
    scale = size.double()
    return torch.where(scale > 0, excess / scale, torch.where(excess <= 0, 0.0, torch.inf))
