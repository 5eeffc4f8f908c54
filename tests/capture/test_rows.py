"""Tensors as rows, and rows put in place."""

from __future__ import annotations

import pytest
import torch

from accuracy_core.capture.rows import TapValue, as_rows, like_original, put_rows
from accuracy_core.errors import InputMismatchError


def test_heads_first_and_tokens_first_are_told_apart_where_both_are_four() -> None:
    tokens_first = torch.arange(64.0).reshape(1, 4, 4, 4)  # (1, tokens, heads, head_dim)
    heads_first = tokens_first.transpose(1, 2)
    expected = tokens_first.reshape(4, 16)
    assert torch.equal(as_rows(tokens_first, 4, tokens_first), expected)
    assert torch.equal(as_rows(heads_first, 4, heads_first), expected)
    back = like_original(expected, heads_first, 4, heads_first)
    assert torch.equal(back, heads_first)


def test_a_tensor_without_rows_for_the_tokens_is_refused() -> None:
    with pytest.raises(InputMismatchError, match=r"\(2, 3\).*5 tokens"):
        as_rows(torch.zeros(2, 3), 5)


def test_rows_are_put_by_position_and_what_is_not_finite_is_left() -> None:
    rows = torch.zeros(3, 2)  # positions 4, 5, 6
    given = torch.tensor([[1.0, 1.0], [float("nan"), 2.0], [3.0, 3.0]])  # positions 5, 6, 7
    put = put_rows(rows, [TapValue(given, first_row=5)], 4, "tap")
    assert put.tolist() == [[0, 0], [1, 1], [0, 2]]
    assert rows.tolist() == [[0, 0], [0, 0], [0, 0]]
    assert put_rows(rows, [TapValue(given, first_row=20)], 4, "tap") is rows
