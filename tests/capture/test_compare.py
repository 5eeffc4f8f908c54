"""Two and three tensors; whole captures; alignment."""

from __future__ import annotations

import math

import pytest
import torch

from accuracy_core.capture.compare import (
    align_decode_captures,
    compare_captures_three_way,
    compare_captures_two_way,
    compare_tensors,
    compare_tensors_three_way,
)
from accuracy_core.errors import ReferenceError_


def test_two_way_by_hand() -> None:
    result = compare_tensors(torch.tensor([[3.0, 4.0]]), torch.tensor([[3.0, 4.5]]))
    assert result.l2 == pytest.approx(0.1)
    assert result.linf == pytest.approx(0.125)
    assert result.max_abs == 0.5
    assert result.cosine == pytest.approx((9 + 18) / (5 * math.hypot(3, 4.5)))


def test_three_way_by_hand() -> None:
    f = torch.tensor([[300.0, 400.0]])
    b, t = torch.tensor([[300.0, 405.0]]), torch.tensor([[310.0, 400.0]])  # float32: base error .01 of the norm
    result = compare_tensors_three_way(f, b, t)
    assert (result.base_l2, result.l2, result.l2_ratio) == pytest.approx((0.01, 0.02, 2.0))
    assert result.linf_ratio == pytest.approx(2.0)
    assert result.passed
    assert not compare_tensors_three_way(f, b, t, max_l2_ratio=2.0).passed


def test_equal_references_count_as_one_rounding() -> None:
    f = torch.tensor([[1.0, 2.0]])
    b = f.to(torch.bfloat16)
    same = compare_tensors_three_way(f, b, b)
    assert (same.l2_ratio, same.passed) == (0.0, True)
    off = compare_tensors_three_way(f, b, f * 1.01)
    assert off.l2_ratio == pytest.approx(0.01 / (0.25 * 2**-7), rel=1e-4)


@pytest.mark.parametrize("place", [0, 5])
def test_nan_never_passes(place: int) -> None:
    f = torch.arange(1.0, 7.0).reshape(2, 3)
    t = f.clone()
    t.view(-1)[place] = float("nan")
    assert compare_tensors(f, t).nonfinite == 1
    result = compare_tensors_three_way(f, f.to(torch.bfloat16), t)
    assert (result.passed, result.nonfinite) == (False, 1)


@pytest.mark.parametrize("shape", [(2, 4), (3, 3), (1, 2, 3)])
def test_another_shape_is_told_with_both_shapes(shape: tuple[int, ...]) -> None:
    f = torch.ones(2, 3)
    result = compare_tensors_three_way(f, f, torch.ones(shape))
    assert not result.passed
    assert str(shape) in result.problem
    assert "(2, 3)" in result.problem


def test_a_reference_that_is_not_finite_is_no_reference() -> None:
    bad = torch.tensor([[float("nan")]])
    with pytest.raises(ReferenceError_):
        compare_tensors_three_way(bad, bad, torch.zeros(1, 1))


def test_captures_keep_the_taps_that_one_side_lacks() -> None:
    f = {"a": torch.ones(2, 3), "b": torch.ones(2, 3)}
    assert compare_captures_two_way(f, {"a": f["a"]})["b"].problem == "not captured"
    three = compare_captures_three_way(f, f, {"a": f["a"]})
    assert (three["a"].passed, three["b"].passed) == (True, False)


def test_alignment_by_position_takes_the_last_of_what_was_computed_twice() -> None:
    expected = {"a": torch.arange(4.0)[:, None]}
    actual = {"a": torch.tensor([[2.0], [9.0], [0.0], [1.0]])}  # position 1 was computed again after preemption
    left, right = align_decode_captures(expected, actual, torch.tensor([2, 1, 0, 1]))
    assert left["a"].flatten().tolist() == [0.0, 1.0, 2.0]
    assert right["a"].flatten().tolist() == [0.0, 1.0, 2.0]


def test_alignment_cuts_nothing_but_logits() -> None:
    rows = torch.zeros(4, 1)
    left, right = align_decode_captures({"lm_head": rows, "a": rows}, {"lm_head": rows[2:], "a": rows[2:]})
    assert (left["lm_head"].shape, right["lm_head"].shape) == ((2, 1), (2, 1))
    assert (left["a"].shape, right["a"].shape) == ((4, 1), (2, 1))
