"""Signed bias: errors that lean towards or away from zero, as truncation makes them."""

from __future__ import annotations

import torch

from accuracy_core.numerics.scratch import Scratch, dot
from accuracy_core.numerics.shift import Shifted


def lean(sign: torch.Tensor, side: Shifted, count: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """`mean(sign(f) * (x - f - shift))` per row, (rows, 1): the bias without the constant's part.

    `sign` (rows, vocab) is sign(f), 0 in columns that do not count; `count` (rows, 1) the columns that do. The signed
    bias of the raw row, `mean(sign(f) * (x - f))`, is this plus `shift * mean(sign(f))`.
    """
    return dot(sign, side.error, scratch) / count
