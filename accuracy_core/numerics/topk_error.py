"""Two-way top-k error: the documented static check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from accuracy_core.numerics.tolerance_map import TopK


class _Expected(Protocol):
    @property
    def expected_values(self) -> torch.Tensor: ...
    @property
    def expected_error(self) -> torch.Tensor: ...
    @property
    def error_max(self) -> torch.Tensor: ...
    @property
    def expected_max(self) -> torch.Tensor: ...


def topk_errors(rows: _Expected, slices: Sequence[TopK], *, vocab: int) -> torch.Tensor:
    """`err_k = max over S_k (|t - e| - atol) / max over S_k |e|` for each slice: (rows, slices) float64.

    `S_k` are the k largest expected logits, all of them when k reaches the vocabulary. Of the `rows`:
    `expected_values`, `expected_error` (rows, leaders) are e and `|t - e|` at the largest expected logits, descending,
    at least as many as the largest k below the vocabulary; `expected_max`, `error_max` (rows,) are `max |e|` and `max
    |t - e|`. Errors are without the shift and infinite where only the target is not finite. Where `max |e|` is 0 the
    error is 0 if it is within atol, else infinite.
    """
    error, size = rows.expected_error.double(), rows.expected_values.double().abs()
    size.masked_fill_(size.isinf(), 0)  # masked
    columns = []
    for s in slices:
        whole = s.k is None or s.k >= vocab
        worst = rows.error_max.double() if whole else error[:, : s.k].amax(-1)
        scale = rows.expected_max.double() if whole else size[:, : s.k].amax(-1)
        excess = worst - s.atol
        columns.append(torch.where(scale > 0, excess / scale, torch.where(excess <= 0, 0.0, torch.inf)))
    return torch.stack(columns, -1)
