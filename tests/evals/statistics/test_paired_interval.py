from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from accuracy_core.evals.statistics.paired_interval import paired_difference


def flips(n: int, worse: int, better: int) -> np.ndarray:
    return np.array([-1.0] * worse + [1.0] * better + [0.0] * (n - worse - better))


def test_agresti_min_by_hand() -> None:
    # n=100, 9 worse, 1 better: cells 9.5 and 1.5, n+2=102
    paired = paired_difference(flips(100, 9, 1))
    assert paired.difference == pytest.approx(-0.08)
    assert paired.center == pytest.approx(-8 / 102)
    assert paired.se == pytest.approx(math.sqrt(11 - 64 / 102) / 102)
    low, high = paired.interval()
    assert (low, high) == pytest.approx((-8 / 102 - 1.959963985 * paired.se, -8 / 102 + 1.959963985 * paired.se))


def test_without_flips_the_interval_is_not_a_point() -> None:
    low, high = paired_difference(flips(300, 0, 0)).interval()
    assert low < 0 < high
    assert high < 0.01


def test_students_t_against_scipy() -> None:
    rng = np.random.default_rng(1)
    target, reference = rng.random(60), rng.random(60)
    expected = scipy.stats.ttest_rel(target, reference).confidence_interval(0.9)
    low, high = paired_difference(target - reference).interval(0.9)
    assert (low, high) == pytest.approx((expected.low, expected.high), rel=1e-10)


def test_coverage_of_the_interval_for_flips() -> None:
    """95 % nominal, 2 % flips one way and 1 % the other, n=200: Wald's interval misses far more often."""
    rng = np.random.default_rng(2)
    truth, n, hits, wald_hits, runs = -0.01, 200, 0, 0, 4000
    for counts in rng.multinomial(n, [0.02, 0.01, 0.97], size=runs):
        d = flips(n, counts[0], counts[1])
        low, high = paired_difference(d).interval()
        hits += low <= truth <= high
        half = 1.96 * d.std(ddof=1) / math.sqrt(n)
        wald_hits += abs(d.mean() - truth) <= half
    assert 0.93 <= hits / runs <= 0.99
    assert wald_hits / runs < hits / runs


def test_repeated_documents_widen_it() -> None:
    d = flips(50, 5, 1)
    alone = paired_difference(d).interval()
    copied = paired_difference(np.repeat(d, 4), np.repeat(np.arange(50), 4)).interval()
    careless = paired_difference(np.repeat(d, 4)).interval()
    assert copied[1] - copied[0] == pytest.approx(alone[1] - alone[0], rel=0.1)
    assert careless[1] - careless[0] < 0.6 * (copied[1] - copied[0])


def test_too_few() -> None:
    assert all(map(math.isnan, paired_difference([0.3]).interval()))
    assert all(map(math.isnan, paired_difference([1.0, 0.0], [7, 7]).interval()))
    with pytest.raises(ValueError, match="at least one"):
        paired_difference([])
    with pytest.raises(ValueError, match="finite"):
        paired_difference([0.1, math.nan])
