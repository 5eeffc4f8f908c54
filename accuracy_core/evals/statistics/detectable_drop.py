"""How small a drop a test of this size could see."""

from __future__ import annotations

import math
from statistics import NormalDist


def _quantiles(alpha: float, power: float) -> float:
    normal = NormalDist()
    return normal.inv_cdf(1 - alpha) + normal.inv_cdf(power)


def detectable_drop_unpaired(n: int, proportion: float = 0.5, *, alpha: float = 0.05, power: float = 0.8) -> float:
    """Smallest drop between two runs of `n` documents each, compared by their scores alone (one-sided).

    (z₁₋α + z_power) · sqrt(2 p (1 - p) / n): Fleiss, Levin & Paik (2003), Statistical Methods for Rates and
    Proportions, ch. 4. `proportion` is the expected score; 0.5 is the worst case (n = 1319: 0.048). Raises ValueError
    for n < 1.
    """
    if n < 1 or not 0 <= proportion <= 1:
        raise ValueError(f"n must be positive and the proportion within 0 and 1, got {n} and {proportion}")
    return _quantiles(alpha, power) * math.sqrt(2 * proportion * (1 - proportion) / n)


def detectable_drop_paired(n: int, disagreement: float, *, alpha: float = 0.05, power: float = 0.8) -> float:
    """Smallest drop when each document is compared with itself (one-sided).

    (z₁₋α + z_power) · sqrt(ψ / n), ψ the share of documents that flip: Connor (1987), Biometrics 43, 207-211, to
    first order (n = 1319, ψ = 0.05: 0.015). Raises ValueError for n < 1.
    """
    if n < 1 or not 0 <= disagreement <= 1:
        raise ValueError(f"n must be positive and the disagreement within 0 and 1, got {n} and {disagreement}")
    return _quantiles(alpha, power) * math.sqrt(disagreement / n)


def smoothed_proportion(score: float, n: int) -> float:
    """(successes + 1) / (n + 2): a perfect score at small n still has variance. Laplace's rule of succession."""
    return (score * n + 1) / (n + 2)
