"""Confidence interval of a paired difference of means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from accuracy_core.evals.statistics.clustered import clustered_standard_error


@dataclass(frozen=True)
class PairedDifference:
    """`center` ± quantile · `se`: the interval's midpoint may be shrunk towards 0, `difference` is the plain mean.

    `dof` None: a normal quantile.
    """

    n: int
    difference: float
    center: float
    se: float
    dof: int | None
    method: str

    def quantile(self, level: float) -> float:
        if self.dof is None:
            return NormalDist().inv_cdf(level)
        from scipy.stats import t

        return float(t.ppf(level, self.dof))

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Two-sided interval; (NaN, NaN) when there are too few samples for one."""
        if not math.isfinite(self.se):
            return math.nan, math.nan
        half = self.quantile(0.5 + confidence / 2) * self.se
        return self.center - half, self.center + half


def paired_difference(
    differences: Sequence[float] | np.ndarray, clusters: Sequence[int] | np.ndarray | None = None
) -> PairedDifference:
    """From per-sample differences (n,), target minus reference.

    - differences of right/wrong answers (-1, 0, 1): Agresti & Min (2005), Statistics in Medicine 24, 729-740: half an
      observation more in each of the four cells, which keeps its coverage with few flips, where Wald's has none;
    - any other numbers: Student's t on the differences;
    - samples that share a document (`clusters`): cluster-robust, see `clustered_standard_error`.

    Raises ValueError without samples or for non-finite differences.
    """
    d = np.asarray(differences, float)
    n = len(d)
    if n == 0 or not np.isfinite(d).all():
        raise ValueError(f"differences must be finite and at least one, got {n} of them")
    mean = float(d.mean())
    if clusters is not None:
        n_clusters = len(np.unique(np.asarray(clusters)))
        if n_clusters < n:
            se = clustered_standard_error(d, clusters) if n_clusters > 1 else math.nan
            return PairedDifference(n, mean, mean, se, n_clusters - 1, "cluster-robust")
    if np.isin(d, (-1.0, 0.0, 1.0)).all():
        worse, better, size = float((d < 0).sum()) + 0.5, float((d > 0).sum()) + 0.5, n + 2.0
        se = math.sqrt((worse + better) - (better - worse) ** 2 / size) / size
        return PairedDifference(n, mean, (better - worse) / size, se, None, "Agresti-Min")
    se = float(d.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan
    return PairedDifference(n, mean, mean, se, n - 1, "Student's t")
