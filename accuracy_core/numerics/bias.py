"""Signed bias: errors that lean towards or away from zero, as truncation makes them."""

from __future__ import annotations

import torch

from accuracy_core.numerics.shift import Shifted


def signed_bias(sign: torch.Tensor, sign_sum: torch.Tensor, side: Shifted, count: torch.Tensor) -> torch.Tensor:
    """`mean(sign(f) * (x - f))` of the raw row, shift not removed: (rows,).

    `sign` (rows, vocab) is sign(f), 0 in columns that do not count, `sign_sum` (rows,) its sum, `count` (rows,) the
    columns that count.
    """
    return ((sign * side.error).sum(-1) + side.shift * sign_sum) / count
