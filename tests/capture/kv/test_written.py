"""The cache must hold what attention was given: bit for bit, or rounded once to a narrower format."""

from __future__ import annotations

import math

import pytest
import torch

from accuracy_core.capture.kv import KvSides
from accuracy_core.capture.kv.written import not_as_given


def sides(given, cached, present=None):
    f = torch.zeros_like(cached.float())
    return KvSides(f, f, cached, given, present)


def test_unknown_without_the_tap():
    assert not_as_given(sides(None, torch.ones(1, 2, 3))) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_one_bit_is_enough_in_the_same_format(dtype):
    given = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    cached = given.clone()
    assert not bool(not_as_given(sides(given, cached)).any())
    cached[1, 2, 3] = torch.nextafter(cached[1, 2, 3].float(), torch.tensor(9.0)).to(dtype) + cached[1, 2, 3] * 2**-7
    assert not_as_given(sides(given, cached)).nonzero().tolist() == [[1, 2]]


def test_nan_that_was_given_is_not_the_caches_fault():
    given = torch.ones(1, 2, 2)
    given[0, 1, 0] = math.nan
    assert not bool(not_as_given(sides(given, given.clone())).any())
    assert not_as_given(sides(torch.ones(1, 2, 2), given)).tolist() == [[False, True]]


@pytest.mark.parametrize("scale", [1.0, 0.013])
def test_fp8_may_round_once_but_not_be_scaled(scale):
    given = torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    stored = (given.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale
    clean = sides(given, stored)
    assert bool(not_as_given(clean).any())  # as a float32 cache it would be wrong
    assert not bool(not_as_given(clean, "fp8").any()) if given.abs().max() < 448 * scale else True
    assert bool(not_as_given(sides(given, stored * 1.25), "fp8").all())


def test_rows_that_are_gone_do_not_count():
    given, cached = torch.ones(1, 3, 2), torch.zeros(1, 3, 2)
    present = torch.tensor([False, True, False])
    assert not_as_given(sides(given, cached, present)).tolist() == [[False, True, False]]
