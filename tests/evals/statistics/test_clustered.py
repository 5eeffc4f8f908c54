from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm

from accuracy_core.evals.statistics.clustered import clustered_standard_error


@pytest.mark.parametrize("seed", range(5))
def test_against_statsmodels(seed: int) -> None:
    rng = np.random.default_rng(seed)
    clusters = rng.integers(0, 40, 200)
    values = rng.normal(size=200) + rng.normal(size=40)[clusters]
    fit = sm.OLS(values, np.ones(200)).fit(
        cov_type="cluster", cov_kwds={"groups": clusters, "use_correction": False, "df_correction": False}
    )
    assert clustered_standard_error(values, clusters) == pytest.approx(fit.bse[0], rel=1e-10)


def test_clusters_of_one_are_the_usual_error() -> None:
    values = np.array([0.0, 1.0, 1.0, 0.0, 1.0])
    assert clustered_standard_error(values, np.arange(5)) == pytest.approx(values.std() / np.sqrt(5))


def test_copies_of_a_document_add_no_certainty() -> None:
    values = np.array([0.0, 1.0, 1.0, 0.0, 1.0])
    once = clustered_standard_error(values, np.arange(5))
    assert clustered_standard_error(np.repeat(values, 8), np.repeat(np.arange(5), 8)) == pytest.approx(once)


@pytest.mark.parametrize(("values", "clusters"), [([], []), ([1.0, 2.0], [1]), ([[1.0]], [[1]])])
def test_bad_shapes(values: list[float], clusters: list[int]) -> None:
    with pytest.raises(ValueError, match="equally long"):
        clustered_standard_error(values, clusters)
