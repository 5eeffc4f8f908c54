from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.contingency_tables import mcnemar

from accuracy_core.evals.statistics.mcnemar import mcnemar_exact

flips = st.integers(0, 200)


@given(flips, flips)
def test_against_statsmodels(worse: int, better: int) -> None:
    expected = mcnemar([[50, worse], [better, 50]], exact=True).pvalue if worse + better else 1.0
    assert mcnemar_exact(worse, better) == pytest.approx(min(1.0, expected), rel=1e-12)


def test_by_hand() -> None:
    # 9 flips, all one way: 2 / 2^9
    assert mcnemar_exact(9, 0) == pytest.approx(2 / 512)
    assert mcnemar_exact(0, 0) == 1.0
    assert mcnemar_exact(4, 4) == 1.0


@given(flips, flips)
def test_symmetric(worse: int, better: int) -> None:
    assert mcnemar_exact(worse, better) == mcnemar_exact(better, worse)


def test_negative_counts() -> None:
    with pytest.raises(ValueError, match="negative"):
        mcnemar_exact(-1, 3)
