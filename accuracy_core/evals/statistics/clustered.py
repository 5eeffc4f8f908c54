"""Standard error of a mean when several samples belong to one document."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def clustered_standard_error(values: Sequence[float] | np.ndarray, clusters: Sequence[int] | np.ndarray) -> float:
    """Cluster-robust standard error of the mean of `values` (n,), grouped by `clusters` (n,).

    sqrt(sum over clusters of (sum of residuals)²) / n, uncorrected for small samples: Liang & Zeger (1986), Biometrika
    73, 13-22; for evaluations Miller (2024), "Adding Error Bars to Evals", arXiv:2411.00640, eq. 4. With every
    cluster of size one it is the usual standard error (with 1/n). Raises ValueError for different or zero lengths.
    """
    x, groups = np.asarray(values, float), np.asarray(clusters)
    if x.shape != groups.shape or x.ndim != 1 or len(x) == 0:
        raise ValueError(f"values and clusters must be two equally long vectors, got {x.shape} and {groups.shape}")
    _, index = np.unique(groups, return_inverse=True)
    sums = np.bincount(index, weights=x - x.mean())
    return float(np.sqrt(np.sum(sums**2)) / len(x))
