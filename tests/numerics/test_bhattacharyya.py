from __future__ import annotations

import math

import pytest
import torch

from accuracy_core.numerics import bhattacharyya
from accuracy_core.numerics.log_histogram import CELLS, MAX_COLUMNS, histogram, quantile, thin


def noise(rows: int, n: int, seed: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(rows, n, generator=torch.Generator().manual_seed(seed)) * 0.02 * scale


def bc(a: torch.Tensor, b: torch.Tensor, min_samples: int = 1) -> torch.Tensor:
    return bhattacharyya(histogram(a), histogram(b), min_samples=min_samples)


def test_histogram_counts_every_magnitude_once_and_adds_up() -> None:
    x = noise(4, 3000, 0)
    whole = histogram(x)
    assert whole.shape == (4, CELLS)
    assert whole.sum(-1).tolist() == [3000] * 4
    assert torch.equal(whole.sum(0), histogram(x[:2]).sum(0) + histogram(x[2:]).sum(0))
    assert torch.equal(histogram(-x), whole)


def test_histogram_keeps_extremes_and_leaves_masked_columns_out() -> None:
    x = torch.tensor([[0.0, 1e-30, 1e30, 0.5]])
    counts = histogram(x)[0]
    assert (int(counts[0]), int(counts[-1]), int(counts.sum())) == (2, 1, 4)
    assert int(histogram(x, torch.tensor([[True, False, False, True]])).sum()) == 2


@pytest.mark.parametrize("q", [0.1, 0.5, 0.99, 1.0])
def test_quantile_is_right_to_a_cell(q: float) -> None:
    x = noise(1, 20_000, 1).abs()
    want = float(torch.quantile(x, q, interpolation="higher"))
    assert want <= quantile(histogram(x)[0], q) <= want * 1.07
    assert math.isnan(quantile(torch.zeros(CELLS, dtype=torch.int64), 0.5))


@pytest.mark.parametrize("n", [256, 1000, 5000, 50_000])
def test_two_samples_of_one_distribution_read_one(n: int) -> None:
    """Uncorrected, 100 bins at n = 1000 would read .974."""
    got = bc(noise(60, n, 2), noise(60, n, 3))
    assert float(got.mean()) == pytest.approx(1.0, abs=0.004 if n < 1000 else 0.001)
    if n >= 5000:
        assert float(got.min()) > 0.99


def test_the_correction_is_what_the_mean_lacks() -> None:
    """Cut to 1 it can only be seen where the coefficient is below 1 anyway."""
    truth = float(bc(noise(1, 4_000_000, 4), noise(1, 4_000_000, 5, 1.5)))
    small = bc(noise(200, 1000, 6), noise(200, 1000, 7, 1.5))
    assert float(small.mean()) == pytest.approx(truth, abs=0.003)
    assert truth == pytest.approx(math.sqrt(2 * 1.5 / (1 + 1.5**2)), abs=0.004)  # BC of two centred Gaussians


def test_one_outlier_does_not_hide_a_difference() -> None:
    base, target = noise(1, 20_000, 8), noise(1, 20_000, 9, 3.0)
    clear = float(bc(base, target))
    target[0, 0] = 15.0
    assert float(bc(base, target)) == pytest.approx(clear, abs=0.002)
    assert clear < 0.8
    edges = 100  # equal-width bins over the joint range, as it is often done
    p, q = (torch.histc(x.abs(), edges, 0, 15) / 20_000 for x in (base, target))
    assert float((p * q).sqrt().sum()) > 0.96


@pytest.mark.parametrize(("scale", "passes"), [(1.1, True), (1.5, False), (5.0, False), (0.0001, False)])
def test_scale_shows(scale: float, passes: bool) -> None:
    assert bool(bc(noise(1, 100_000, 10), noise(1, 100_000, 11, scale)) >= 0.99) == passes


def test_few_samples_are_not_measured() -> None:
    got = bc(noise(1, 260, 12), noise(1, 260, 13), min_samples=4096)
    assert bool(got.isnan().all())
    assert not bool(bc(noise(1, 4096, 12), noise(1, 4096, 13), min_samples=4096).isnan().any())


def test_identical_and_tied_errors() -> None:
    zero = torch.zeros(1, 5000)
    assert float(bc(zero, zero)) == 1.0
    steps = (noise(1, 5000, 14) * 50).round() / 50  # a handful of distinct values
    assert float(bc(steps, steps)) == 1.0
    assert float(bc(zero, noise(1, 5000, 15))) < 0.1


def test_thinning_keeps_narrow_rows_whole() -> None:
    assert thin(torch.zeros(1, MAX_COLUMNS)).shape[1] == MAX_COLUMNS
    assert 0.5 * MAX_COLUMNS < thin(torch.zeros(1, 128_256)).shape[1] <= MAX_COLUMNS
