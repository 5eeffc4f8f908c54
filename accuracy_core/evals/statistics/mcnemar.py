"""McNemar's exact test on paired right/wrong answers."""

from __future__ import annotations


def mcnemar_exact(n_worse: int, n_better: int) -> float:
    """Two-sided p that flips go both ways alike: binomial over the discordant pairs. 1.0 without any.

    McNemar (1947), Psychometrika 12, 153-157; the exact form is the sign test on the flips, see Fay (2010),
    Biostatistics 11, 373-374. Raises ValueError for negative counts.
    """
    from scipy.stats import binom

    if n_worse < 0 or n_better < 0:
        raise ValueError(f"flip counts must not be negative, got {n_worse} and {n_better}")
    discordant = n_worse + n_better
    if discordant == 0:
        return 1.0
    return float(min(1.0, 2.0 * binom.cdf(min(n_worse, n_better), discordant, 0.5)))
