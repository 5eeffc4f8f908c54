from __future__ import annotations

import numpy as np
import pytest
from statsmodels.stats.proportion import proportions_ztest

from accuracy_core.evals.statistics.mcnemar import mcnemar_exact
from accuracy_core.evals.statistics.unpaired import two_proportion_p


@pytest.mark.parametrize(("a", "b"), [(270, 261), (10, 200), (150, 150)])
def test_against_statsmodels(a: int, b: int) -> None:
    _, expected = proportions_ztest([a, b], [300, 300])
    assert two_proportion_p(a, 300, b, 300) == pytest.approx(expected, rel=1e-12)


def test_no_variance_and_bad_counts() -> None:
    assert two_proportion_p(300, 300, 300, 300) == 1.0
    with pytest.raises(ValueError, match="do not fit"):
        two_proportion_p(301, 300, 0, 300)


def test_a_drop_of_three_points_at_300_documents(capsys: pytest.CaptureFixture[str]) -> None:
    """Reference at 90 %, an engine that loses 3 points and flips 1 % both ways besides: who calls it?

    The paired test does in most runs, the comparison of the two scores almost never; without a drop, neither may.
    """
    rng, n, runs = np.random.default_rng(5), 300, 2000
    called: dict[str, dict[float, float]] = {"paired": {}, "unpaired": {}}
    for drop in (0.0, 0.03):
        hits = {"paired": 0, "unpaired": 0}
        for _ in range(runs):
            reference = rng.random(n) < 0.9
            lost = rng.permutation(np.flatnonzero(reference))[: round(drop * n)]
            target = reference.copy()
            target[lost] = False
            noise = rng.random(n) < 0.01
            target ^= noise
            worse, better = int((reference & ~target).sum()), int((~reference & target).sum())
            hits["paired"] += mcnemar_exact(worse, better) < 0.05
            hits["unpaired"] += two_proportion_p(int(reference.sum()), n, int(target.sum()), n) < 0.05
        for name, count in hits.items():
            called[name][drop] = count / runs
    with capsys.disabled():
        print(
            f"\n3-point drop at n={n}, {runs} runs: called by the paired test in {called['paired'][0.03]:.1%}, "
            f"by the unpaired one in {called['unpaired'][0.03]:.1%}; without a drop in {called['paired'][0.0]:.1%} "
            f"and {called['unpaired'][0.0]:.1%}"
        )
    assert called["paired"][0.03] > 0.8
    assert called["unpaired"][0.03] < 0.1
    assert called["paired"][0.0] < 0.05
