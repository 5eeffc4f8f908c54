"""Two scores compared without pairing, to show what pairing gains."""

from __future__ import annotations

import math


def two_proportion_p(right_a: int, n_a: int, right_b: int, n_b: int) -> float:
    """Two-sided p of the pooled z-test for two proportions (Fleiss, Levin & Paik 2003, ch. 3). 1.0 without variance.

    Raises ValueError for counts that do not fit.
    """
    if not (0 <= right_a <= n_a and 0 <= right_b <= n_b and n_a > 0 and n_b > 0):
        raise ValueError(f"counts do not fit: {right_a}/{n_a} and {right_b}/{n_b}")
    pooled = (right_a + right_b) / (n_a + n_b)
    variance = pooled * (1 - pooled) * (1 / n_a + 1 / n_b)
    if variance == 0:
        return 1.0
    return math.erfc(abs(right_a / n_a - right_b / n_b) / math.sqrt(2 * variance))
