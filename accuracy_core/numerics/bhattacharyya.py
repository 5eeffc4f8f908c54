"""Overlap of two error distributions."""

from __future__ import annotations

import torch

_MOST_BINS = 64
_SAMPLES_PER_BIN = 32


def bhattacharyya(base: torch.Tensor, target: torch.Tensor, *, min_samples: int) -> torch.Tensor:
    """Bhattacharyya coefficient `sum sqrt(p q)` of pairs of histograms, corrected for small samples: (rows,) float64.

    `base`, `target`: counts (rows, cells) on one grid. Cells are merged into bins of about equal baseline mass, so that
    one outlier cannot stretch them; their number follows the sample (32 per bin, at most 64 bins). Two samples of one
    distribution read about `(bins - 1) / 8 * (1/n + 1/m)` too low (second-order expansion of the Hellinger distance of
    multinomials; Bhattacharyya 1943, Lin 1991), which is added back; the result is cut to 1. NaN where either side has
    fewer than `min_samples` counts: not measured.
    """
    n = base.sum(-1, keepdim=True).double()
    m = target.sum(-1, keepdim=True).double()
    bins = (torch.minimum(n, m) / _SAMPLES_PER_BIN).floor().clamp(2, _MOST_BINS)
    middle = base.cumsum(-1) - base / 2  # of a cell, in the baseline's ranks: tied errors stay in one bin
    bin_of = (middle / n.clamp(min=1) * bins).floor().clamp(max=_MOST_BINS - 1).long()
    bin_of = torch.minimum(bin_of, (bins - 1).long())
    shape = (base.shape[0], _MOST_BINS)
    p = torch.zeros(shape, dtype=torch.float64, device=base.device).scatter_add_(1, bin_of, base.double()) / n
    q = torch.zeros(shape, dtype=torch.float64, device=base.device).scatter_add_(1, bin_of, target.double()) / m
    occupied = ((p + q) > 0).sum(-1)
    raw = (p * q).sqrt().sum(-1)
    bias = (occupied - 1) / 8 * (1 / n + 1 / m).squeeze(-1)
    measured = (torch.minimum(n, m) >= max(min_samples, 1)).squeeze(-1)
    return torch.where(measured, (raw + bias).clamp(max=1.0), torch.nan)
