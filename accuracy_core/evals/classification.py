"""Whether a sample is right, from its own metric."""

from __future__ import annotations

import numpy as np

_RIGHT = 1.0
_RIGHT_IN_PERCENT = 100.0


def right_value(values: np.ndarray, score: float, higher_is_better: bool) -> float:
    """What a fully right sample has: 0 where lower is better, 100 where the metric goes above 1, else 1.

    `values` are the per-sample values of one task and metric, `score` its aggregate.
    """
    if not higher_is_better:
        return 0.0
    finite = values[np.isfinite(values)]
    above_one = (len(finite) > 0 and finite.max() > _RIGHT) or (np.isfinite(score) and score > _RIGHT)
    return _RIGHT_IN_PERCENT if above_one else _RIGHT


def is_right(values: np.ndarray, best: float, higher_is_better: bool) -> np.ndarray:
    """(n,) bool: fully right. NaN and infinite values are not."""
    reached = values >= best if higher_is_better else values <= best
    return np.isfinite(values) & reached


def badness(values: np.ndarray, best: float, higher_is_better: bool) -> np.ndarray:
    """(n,) how far from right, 0 for right, infinite for NaN and infinities: orders samples worst first."""
    gap = best - values if higher_is_better else values - best
    scale = best if higher_is_better else 1.0
    return np.where(np.isfinite(values), np.maximum(gap, 0.0) / scale, np.inf)
