from __future__ import annotations

import math

import numpy as np
import pytest
from statsmodels.stats.power import zt_ind_solve_power

from accuracy_core.evals.statistics.detectable_drop import (
    detectable_drop_paired,
    detectable_drop_unpaired,
    smoothed_proportion,
)


def test_published_example() -> None:
    """gsm8k's 1319 questions: 4.8 points unpaired, 1.5 paired at 5 % disagreement."""
    assert detectable_drop_unpaired(1319) == pytest.approx(0.048, abs=5e-4)
    assert detectable_drop_paired(1319, 0.05) == pytest.approx(0.015, abs=5e-4)


@pytest.mark.parametrize(("n", "p"), [(100, 0.5), (300, 0.9), (1319, 0.435)])
def test_against_statsmodels(n: int, p: float) -> None:
    effect = zt_ind_solve_power(nobs1=n, alpha=0.05, power=0.8, ratio=1, alternative="larger")
    assert detectable_drop_unpaired(n, p) == pytest.approx(effect * math.sqrt(p * (1 - p)), rel=1e-5)


def test_power_of_the_paired_drop_by_simulation() -> None:
    """A drop of that size is seen in about 80 % of runs by the one-sided test on the flips."""
    rng, n, disagreement = np.random.default_rng(4), 2000, 0.05
    drop = detectable_drop_paired(n, disagreement)
    worse = (disagreement + drop) / 2
    counts = rng.multinomial(n, [worse, disagreement - worse, 1 - disagreement], size=4000)
    z = (counts[:, 0] - counts[:, 1]) / np.sqrt(counts[:, 0] + counts[:, 1])
    assert 0.75 < (z > 1.645).mean() < 0.85


def test_a_perfect_score_is_not_without_doubt() -> None:
    assert smoothed_proportion(1.0, 20) == pytest.approx(21 / 22)
    assert detectable_drop_unpaired(20, smoothed_proportion(1.0, 20)) > 0.1


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="positive"):
        detectable_drop_unpaired(0)
    with pytest.raises(ValueError, match="within"):
        detectable_drop_paired(10, 1.5)
