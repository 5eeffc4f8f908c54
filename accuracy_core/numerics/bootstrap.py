"""How certain is a ratio of pooled errors, given how much prompts differ?"""

from __future__ import annotations

import math

import torch

_RESAMPLES, _SEED = 2000, 20_240_229


def ratio_interval(target_sq: torch.Tensor, base_sq: torch.Tensor, level: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap interval, over prompts, of `sqrt(sum target_sq / sum base_sq)`.

    `target_sq`, `base_sq` (prompts,): sums of squared errors. Whole prompts are drawn, since errors within one are
    correlated. The same for every order of the prompts; (NaN, NaN) for fewer than two prompts or non-finite sums.
    """
    n = len(base_sq)
    if n < 2 or not bool((target_sq.isfinite() & base_sq.isfinite()).all()) or float(base_sq.sum()) == 0:
        return math.nan, math.nan
    pairs = torch.stack([target_sq, base_sq], -1)
    order = sorted(range(n), key=lambda i: tuple(pairs[i].tolist()))
    draws = torch.randint(n, (_RESAMPLES, n), generator=torch.Generator().manual_seed(_SEED))
    sums = pairs[order][draws].sum(1)
    values = (sums[:, 0] / sums[:, 1]).sqrt().nan_to_num(nan=math.inf)
    tail = (1 - level) / 2
    low, high = torch.quantile(values, torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return low, high
