"""The documented rules of module tests, on numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from accuracy_core.errors import InputMismatchError
from accuracy_core.modules import assert_close, assert_close_three_way, closeness, closeness_three_way

NAN = math.nan


def test_errors_are_measured_in_the_largest_expected_value():
    expected = torch.tensor([100.0, 1.0])
    assert assert_close(torch.tensor([100.0, 1.05]), expected, atol=1e-3).worst == pytest.approx(0.05 / 100)
    with pytest.raises(AssertionError, match=r"error 0\.002 .*\(0, 1\)"):
        assert_close(torch.tensor([100.0, 1.2]), expected, atol=1e-3)


def test_the_scale_is_one_for_all_tensors():
    expected = [torch.tensor([100.0]), torch.tensor([0.01])]
    assert closeness([torch.tensor([100.0]), torch.tensor([0.05])], expected, atol=1e-3).passed
    assert not closeness(torch.tensor([0.05]), torch.tensor([0.01]), atol=1e-3).passed


def test_rtol_allows_more_where_more_is_expected():
    expected = torch.tensor([10.0, 1.0])
    assert closeness(torch.tensor([10.5, 1.0]), expected, rtol=0.06, atol=0).passed
    assert not closeness(torch.tensor([10.0, 1.5]), expected, rtol=0.06, atol=0).passed


@pytest.mark.parametrize("bad", [NAN, math.inf])
def test_nothing_that_is_not_finite_passes(bad):
    assert not closeness(torch.tensor([bad, 1.0]), torch.tensor([1.0, 1.0]), atol=1e9).passed
    result = closeness_three_way(torch.ones(4), torch.ones(4), torch.tensor([1.0, 1.0, bad, 1.0]))
    assert not result.passed
    assert "tensor 0" in result.reason


@pytest.mark.parametrize("call", [closeness, lambda a, e: closeness_three_way(e, e, a)])
def test_what_cannot_be_compared_is_an_error(call):
    with pytest.raises(InputMismatchError, match=r"\(2,\) and \(3,\)"):
        call(torch.ones(2), torch.ones(3))
    with pytest.raises(InputMismatchError, match="1 and 2"):
        call([torch.ones(2)], [torch.ones(2), torch.ones(2)])
    with pytest.raises(InputMismatchError, match="NaN"):
        call(torch.ones(1), torch.tensor([NAN]))


def noisy(scale: float, seed: int, n: int = 20_000) -> tuple[torch.Tensor, torch.Tensor]:
    f = torch.linspace(-1, 1, n)
    return f, f + scale * torch.randn(n, generator=torch.Generator().manual_seed(seed))


def test_equal_noise_passes_and_the_figures_are_those_of_the_definition():
    f, b = noisy(0.01, 0)
    _, t = noisy(0.01, 1)
    result = assert_close_three_way(f, b, t)
    assert result.sigma_ratio == pytest.approx(float((t - f).norm() / (b - f).norm()), rel=1e-6)
    assert result.worst_linf_ratio == pytest.approx(float((t - f).abs().max() / (b - f).abs().max()), rel=1e-6)
    assert result.bc > 0.99


def test_twice_the_noise_fails_by_shape_and_size():
    f, b = noisy(0.01, 0)
    _, t = noisy(0.02, 1)
    with pytest.raises(AssertionError, match="sigma ratio 2"):
        assert_close_three_way(f, b, t)


def test_one_wild_value_fails_although_the_average_is_fine():
    f, b = noisy(0.01, 0)
    t = b.clone()
    t[17] += 6 * float((b - f).abs().max())
    result = closeness_three_way(f, b, t)
    assert result.bc > 0.99
    assert not result.passed
    assert "L-inf ratio" in result.reason


def test_one_bad_tensor_of_a_list_fails():
    f, b = noisy(0.01, 0, 2000)
    fine = [(f, *noisy(0.01, seed, 2000)[1:]) for seed in range(1, 10)]
    small = f * 1e-3
    bad = small + 4e-3 * (b - f)
    result = closeness_three_way(
        [*(item[0] for item in fine), small], [*(item[1] for item in fine), small + 1e-3 * (b - f)],
        [*(item[1] for item in fine), bad],
    )  # fmt: skip
    assert result.worst_l2_ratio == pytest.approx(4, rel=1e-3)
    assert not result.passed


def test_a_reference_without_noise_allows_one_rounding_step():
    f = torch.linspace(-1, 1, 4096)
    exact = f.to(torch.bfloat16)
    same = exact.float()
    assert closeness_three_way(same, exact, same).passed
    assert not closeness_three_way(same, exact, same * 1.05).passed


def test_cut_digits_are_named_and_rounded_ones_are_not():
    f = torch.randn(50_000, generator=torch.Generator().manual_seed(3))
    rounded = f.to(torch.bfloat16)
    cut = (f.view(torch.int32) & ~0xFFFF).view(torch.float32)
    result = closeness_three_way(f, rounded, cut)
    assert not result.passed
    # a remainder uniform in [0, step) has mean step/2, and rounding to nearest an RMS of step/sqrt(12)
    step = torch.exp2(f.double().abs().log2().floor() - 7)
    by_hand = -math.sqrt(3) * float(step.mean() / step.square().mean().sqrt())
    assert result.lean == pytest.approx(by_hand, rel=0.02)
    assert "cut off instead of rounded" in result.reason
    assert closeness_three_way(f, rounded, rounded).lean == 0
