"""Signed bias: errors that lean towards or away from zero, as truncation makes them."""

from __future__ import annotations

import torch

from accuracy_core.numerics.log_histogram import thin


def lean(sign: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    """`mean(sign(f) * (x - f - shift))` per row, (…, rows): the signed bias without the constant's part.

    `sign` (rows, vocab) is sign(f), `error` (…, rows, vocab) is `x - f` without its shift, both 0 in columns that do
    not count. Wide rows are thinned: this is tested over many rows, where a sample of each is enough.
    """
    sign, error = thin(sign), thin(error)
    return (sign * error).sum(-1) / sign.abs().sum(-1).clamp(min=1)
