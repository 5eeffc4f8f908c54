"""Tail of Student's t, and means whose samples come in clusters."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class ClusteredMean:
    """`mean` over clusters, its standard error, `t = mean / se`, the two-sided `p` at `clusters - 1` degrees."""

    mean: float
    se: float
    t: float
    p: float
    clusters: int


def clustered_mean(values: torch.Tensor, cluster: torch.Tensor) -> ClusteredMean:
    """Mean of `values` (n,) with a standard error over clusters `cluster` (n,) int64.

    Values within a cluster may be correlated in any way: only the spread of the cluster means counts. With one cluster
    the standard error is NaN and p is NaN. Non-finite values are left out.
    """
    keep = values.isfinite()
    values, cluster = values[keep], cluster[keep]
    if not len(values):
        return ClusteredMean(math.nan, math.nan, math.nan, math.nan, 0)
    _, inverse = cluster.unique(return_inverse=True)
    n = int(inverse.max()) + 1
    sums = torch.zeros(n, dtype=torch.float64).index_add_(0, inverse, values.double())
    means = sums / torch.bincount(inverse, minlength=n)
    means = means.sort().values  # the sum must not depend on the order of prompts
    mean = float(means.mean())
    if n < 2:
        return ClusteredMean(mean, math.nan, math.nan, math.nan, n)
    se = float(means.std() / math.sqrt(n))
    t = mean / se if se > 0 else (math.copysign(math.inf, mean) if mean else 0.0)
    return ClusteredMean(mean, se, t, two_sided_p(t, n - 1), n)


def two_sided_p(t: float, degrees: int) -> float:
    """`P(|T| >= |t|)` of Student's t with whole `degrees` of freedom (Abramowitz and Stegun 26.7.3, 26.7.4)."""
    if math.isnan(t):
        return math.nan
    if math.isinf(t):
        return 0.0
    theta = math.atan(abs(t) / math.sqrt(degrees))
    cos, sin = math.cos(theta), math.sin(theta)
    if degrees % 2:
        term, total = cos, cos if degrees > 1 else 0.0
        for k in range(3, degrees - 1, 2):
            term *= cos * cos * (k - 1) / k
            total += term
        inside = 2 / math.pi * (theta + sin * total)
    else:
        term, total = 1.0, 1.0
        for k in range(2, degrees - 1, 2):
            term *= cos * cos * (k - 1) / k
            total += term
        inside = sin * total
    return max(0.0, 1.0 - inside)
