"""Histograms of error magnitudes on one fixed logarithmic grid.

The grid does not depend on the data, so histograms add up over chunks, prompts and rows and nothing else need be kept;
bins that suit the data (quantiles of the baseline) are made afterwards by merging grid cells. A cell is read off the
float's own bits: the exponent and the leading mantissa bits.
"""

from __future__ import annotations

import torch

_MANTISSA = 4  # 16 cells per octave: a cell is 3 to 6 % wide
_LOWEST, _OCTAVES = -40, 60  # magnitudes 2^-40 … 2^20; what lies outside is counted in the end cells
_FIRST = (127 + _LOWEST) << _MANTISSA
#: number of cells
CELLS = _OCTAVES << _MANTISSA
#: columns a row contributes at most; wider rows are thinned evenly
MAX_COLUMNS = 8_192
_RUN = 64


def thin(x: torch.Tensor) -> torch.Tensor:
    """Evenly spaced runs of `x` (…, vocab), MAX_COLUMNS columns at most; all of a narrower row.

    A shape is known well enough from 8k samples. Whole runs of columns are taken, since memory is read in lines.
    """
    step = -(-x.shape[-1] // MAX_COLUMNS)
    if step == 1:
        return x
    runs = x.shape[-1] // (_RUN * step)
    return x[..., : runs * step * _RUN].unflatten(-1, (runs, step, _RUN))[..., 0, :].flatten(-2)


def histogram(x: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
    """Counts of `|x|` along the last dimension: (…, CELLS) int64. `x` (…, n) is finite; columns that are not `valid`
    (same shape, or that of the last dimensions) do not count."""
    rows = x.shape[:-1].numel()
    cell = (x.abs().float().view(torch.int32) >> (23 - _MANTISSA)).sub_(_FIRST).clamp_(0, CELLS - 1)
    if rows > 1:
        offset = torch.arange(0, rows * CELLS, CELLS, dtype=torch.int32, device=x.device)
        cell += offset.view(*x.shape[:-1], 1)
    if valid is not None:
        cell = cell[valid.expand(x.shape)]
    return torch.bincount(cell.reshape(-1), minlength=rows * CELLS).view(*x.shape[:-1], CELLS)


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
