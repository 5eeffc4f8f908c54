from __future__ import annotations

import math

import numpy as np
import pytest
from statsmodels.stats.weightstats import ttost_paired

from accuracy_core.evals.statistics.non_inferiority import is_non_inferior, non_inferiority_p
from accuracy_core.evals.statistics.paired_interval import paired_difference
from tests.evals.statistics.test_paired_interval import flips


@pytest.mark.parametrize("margin", [0.02, 0.1, 0.3])
def test_against_statsmodels(margin: float) -> None:
    rng = np.random.default_rng(3)
    target, reference = rng.random(80), rng.random(80)
    _, lower, _ = ttost_paired(target, reference, -margin, margin)
    assert non_inferiority_p(paired_difference(target - reference), margin) == pytest.approx(lower[1], rel=1e-10)


def test_agrees_with_the_interval() -> None:
    """At alpha .05 the verdict is whether the one-sided 95 % bound stays above minus the margin."""
    for worse in range(0, 12):
        paired = paired_difference(flips(300, worse, 1))
        assert is_non_inferior(paired, 0.02) is (paired.interval(0.9)[0] > -0.02)


def test_verdicts() -> None:
    assert is_non_inferior(paired_difference(flips(300, 1, 1)), 0.02) is True
    assert is_non_inferior(paired_difference(flips(300, 9, 0)), 0.02) is False
    assert is_non_inferior(paired_difference(flips(20, 0, 0)), 0.02) is False, "too few documents to say so"
    assert is_non_inferior(paired_difference([0.5]), 0.02) is None
    assert is_non_inferior(paired_difference([0.25, 0.25, 0.25]), 0.02) is True
    assert is_non_inferior(paired_difference([-0.25, -0.25, -0.25]), 0.02) is False


@pytest.mark.parametrize("margin", [0.0, -0.1, math.nan])
def test_margin_must_be_positive(margin: float) -> None:
    with pytest.raises(ValueError, match="margin"):
        non_inferiority_p(paired_difference([0.0, 0.1]), margin)
