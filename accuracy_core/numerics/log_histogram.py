"""Histograms of error magnitudes on one fixed logarithmic grid.

The grid does not depend on the data, so histograms add up over chunks, prompts and rows and nothing else need be kept;
bins that suit the data (quantiles of the baseline) are made afterwards by merging grid cells. A cell is read off the
float's own bits: the exponent and the leading mantissa bits.
"""

from __future__ import annotations

import torch

_MANTISSA = 5  # 32 cells per octave: a cell is 2 to 3 % wide
_LOWEST, _OCTAVES = -40, 64  # magnitudes 2^-40 … 2^24; what lies outside is counted in the end cells
_FIRST = (127 + _LOWEST) << _MANTISSA
#: number of cells
CELLS = _OCTAVES << _MANTISSA
#: columns a row contributes at most; wider rows are thinned evenly
MAX_COLUMNS = 8_192


def thin(x: torch.Tensor) -> torch.Tensor:
    """Every n-th column of `x` (rows, vocab), at most MAX_COLUMNS: a shape is known well enough from 8k samples."""
    step = -(-x.shape[-1] // MAX_COLUMNS)
    return x[:, ::step]


def histogram(x: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
    """Counts of `|x|` per row: (rows, CELLS) int64. `x` (rows, n) finite; columns that are not `valid` do not count."""
    rows = x.shape[0]
    cell = (x.abs().float().view(torch.int32) >> (23 - _MANTISSA)).sub_(_FIRST).clamp_(0, CELLS - 1)
    if rows > 1:
        cell += torch.arange(rows, dtype=torch.int32, device=x.device).unsqueeze(-1) * CELLS
    if valid is not None:
        cell = cell[valid]
    return torch.bincount(cell.reshape(-1), minlength=rows * CELLS).view(rows, CELLS)


def quantile(counts: torch.Tensor, q: float) -> float:
    """Upper edge of the cell that holds the `q` quantile of `counts` (CELLS,); NaN when nothing was counted."""
    total = int(counts.sum())
    if not total:
        return float("nan")
    rank = min(max(int(-(-q * total // 1)), 1), total)
    cell = int((counts.cumsum(0) >= rank).int().argmax())
    if cell == 0:
        return 0.0
    bits = (cell + 1 + _FIRST) << (23 - _MANTISSA)
    return float(torch.tensor(bits, dtype=torch.int32).view(torch.float32))
