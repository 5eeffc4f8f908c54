"""Differences by hand, and that nothing which cannot be compared ever looks close."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from accuracy_core.consistency.difference import difference, error_size, noise_size

INF, NAN = math.inf, math.nan


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def test_a_constant_is_no_difference_and_the_rest_is_a_norm():
    apart = difference(rows([1, 2, 3], [0, 0, 4]), rows([6, 7, 8], [3, 0, 4]))
    # second row: (3, 0, 0) about its mean is (2, -1, -1); the logits (0, 0, 4) about theirs have norm sqrt(32/3)
    assert apart.size.tolist() == pytest.approx([0, math.sqrt(6)], abs=1e-12)
    assert apart.relative.tolist() == pytest.approx([0, math.sqrt(6) / math.sqrt(32 / 3)])
    assert (apart.bit_equal, apart.broken.tolist()) == (False, [False, False])


def test_equal_to_the_last_bit():
    a = torch.randn(3, 7)
    assert difference(a, a.clone()).bit_equal
    nudged = a.clone()
    nudged[1, 2] = torch.nextafter(nudged[1, 2], torch.tensor(INF))
    assert not difference(a, nudged).bit_equal


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([1, 2, NAN], [1, 2, 3]),
        ([1, 2, 3], [1, NAN, 3]),
        ([NAN, 2, 3], [NAN, 2, 3]),
        ([1, 2, INF], [1, 2, INF]),
        ([1, 2, -INF], [1, 2, 3]),
        ([-INF, -INF, -INF], [-INF, -INF, -INF]),
    ],
)
def test_what_is_not_finite_is_infinitely_far_off(a, b):
    apart = difference(rows(a), rows(b))
    assert (apart.broken.tolist(), apart.size.tolist(), apart.relative.tolist()) == ([True], [INF], [INF])


def test_columns_masked_on_both_sides_drop_out():
    apart = difference(rows([1, 2, -INF]), rows([1, 4, -INF]))
    assert apart.size.tolist() == pytest.approx([math.sqrt(2)])  # (0, 2) about its mean
    assert not apart.broken.any()


@pytest.mark.parametrize("shorter", [0, 1])
def test_a_missing_row_is_infinitely_far_off(shorter):
    sides = [torch.ones(3, 4), torch.ones(3, 4)]
    sides[shorter] = sides[shorter][:2]
    apart = difference(*sides)
    assert apart.size.tolist() == [0, 0, INF]
    assert apart.broken.tolist() == [False, False, True]


def test_a_wider_side_breaks_its_rows_unless_the_rest_is_masked():
    narrow = rows([1, 2])
    assert difference(narrow, rows([1, 2, 3])).broken.tolist() == [True]
    assert difference(narrow, rows([1, 2, -INF])).size.tolist() == [0]


def test_error_and_noise_in_float64():
    generator = np.random.default_rng(0)
    fp32 = generator.normal(size=(4, 50))
    noisy = fp32 + generator.normal(scale=0.05, size=fp32.shape) + 3.0
    error = noisy - fp32
    expected = np.linalg.norm(error - error.mean(-1, keepdims=True), axis=-1)
    sides = torch.tensor(noisy), torch.tensor(fp32)
    assert error_size(*sides).numpy() == pytest.approx(expected)
    assert noise_size(*sides, 7).numpy() == pytest.approx(expected)
    # a reference without noise of its own: one rounding of every logit, 2^-7 / sqrt(12) of it
    centred = np.linalg.norm(fp32 - fp32.mean(-1, keepdims=True), axis=-1)
    assert noise_size(sides[1], sides[1], 7).numpy() == pytest.approx(centred * 2**-7 / math.sqrt(12))


def test_an_error_that_is_nan_stays_one():
    assert torch.isnan(error_size(rows([1, NAN]), rows([1, 2]))).all()
