"""Two-way top-k error: the documented static check."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from accuracy_core.numerics.leaders import Leaders
from accuracy_core.numerics.shift import Difference
from accuracy_core.numerics.tolerance_map import TopK


def topk_errors(
    difference: Difference,
    expected: Leaders,
    slices: Sequence[TopK],
    *,
    expected_max: torch.Tensor,
    vocab: int,
) -> torch.Tensor:
    """`err_k = max over S_k (|t - e| - atol) / max over S_k |e|` for each slice: (rows, slices).

    `S_k` are the k largest expected logits, all of them when k reaches the vocabulary. `difference` is `t - e`,
    infinite in columns that only the target has not; `expected` the leaders of e, at least as many as the largest k
    below the vocabulary; `expected_max` (rows,) is `max |e|`. Where `max |e|` is 0 the error is 0 if it is within
    atol, else infinite.
    """
    head = (difference.values.gather(-1, expected.ids) - difference.shift).abs_()
    high, low = difference.values.amax(-1), difference.values.amin(-1)
    shift = difference.shift.squeeze(-1)
    error_max = torch.maximum(high - shift, shift - low)
    size = expected.values.abs().masked_fill(expected.values.isinf(), 0)
    columns = []
    for s in slices:
        whole = s.k is None or s.k >= vocab
        worst = error_max if whole else head[:, : s.k].amax(-1)
        scale = expected_max if whole else size[:, : s.k].amax(-1)
        excess = worst - s.atol
        columns.append(torch.where(scale > 0, excess / scale, torch.where(excess <= 0, 0.0, torch.inf)))
    return torch.stack(columns, -1)


def largest_k(slices: Sequence[TopK], vocab: int) -> int:
    """How many leaders of the expected logits the slices need."""
    return max((s.k for s in slices if s.k is not None and s.k < vocab), default=1)
