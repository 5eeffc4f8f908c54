"""Is the target at most a margin worse than the reference?"""

from __future__ import annotations

import math

from accuracy_core.evals.statistics.paired_interval import PairedDifference


def non_inferiority_p(paired: PairedDifference, margin: float) -> float:
    """One-sided p of "the target is worse by `margin` or more"; below alpha, the target is non-inferior.

    The lower of the two one-sided tests of Schuirmann (1987), J. Pharmacokinetics and Biopharmaceutics 15, 657-680
    (TOST): for a regression check only this side matters. NaN when there is no standard error. Raises ValueError for
    a margin that is not positive.
    """
    if not margin > 0:
        raise ValueError(f"the margin must be positive, got {margin}")
    if not math.isfinite(paired.se):
        return math.nan
    if paired.se == 0:
        return 0.0 if paired.center > -margin else 1.0
    statistic = (paired.center + margin) / paired.se
    if paired.dof is None:
        return math.erfc(statistic / math.sqrt(2)) / 2
    from scipy.stats import t

    return float(t.sf(statistic, paired.dof))


def is_non_inferior(paired: PairedDifference, margin: float, alpha: float = 0.05) -> bool | None:
    """None when it cannot be said."""
    p = non_inferiority_p(paired, margin)
    return None if math.isnan(p) else p < alpha
