"""Whole tensors out of shards."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from accuracy_core.capture.reconstruction import ShardLayout, partition_order, reconstruct, unshuffled
from accuracy_core.errors import InputMismatchError

_CONFIG = {"num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 64}
_AT = "model.layers.3.self_attn"


def _layout(**declared: Any) -> ShardLayout:
    return ShardLayout(_CONFIG, **declared)


def test_column_parallel_outputs_are_joined_in_the_order_of_ranks() -> None:
    whole = torch.arange(24.0).reshape(3, 8)
    for tap in (f"{_AT}.query", f"{_AT}.attn", "model.layers.3.mlp.act", "model.layers.3.mlp.gate_proj"):
        assert torch.equal(reconstruct(tap, whole.chunk(4, 1), _layout()), whole)


def test_kv_heads_that_several_ranks_hold_count_once() -> None:
    """Two KV heads on four ranks: ranks 0 and 1 hold head 0, ranks 2 and 3 head 1."""
    heads = [torch.full((3, 2), float(head)) for head in range(2)]
    got = reconstruct(f"{_AT}.key", [heads[0], heads[0], heads[1], heads[1]], _layout())
    assert got.tolist() == [[0, 0, 1, 1]] * 3
    assert reconstruct(f"{_AT}.key", heads, _layout()).shape == (3, 4)


def test_replicated_outputs_count_once_and_must_agree() -> None:
    rows = torch.randn(3, 8)
    assert torch.equal(reconstruct(f"{_AT}.o_proj", [rows, rows.clone()], _layout()), rows)
    other = rows.clone()
    other[1, 2] += 1
    with pytest.raises(InputMismatchError, match=r"copy 1 differs.*position 1"):
        reconstruct(f"{_AT}.o_proj", [rows, other], _layout())


def test_partial_sums_are_added() -> None:
    parts = [torch.full((2, 4), 0.5, dtype=torch.bfloat16) for _ in range(4)]
    got = reconstruct(f"{_AT}.o_proj", parts, _layout(partial=frozenset({f"{_AT}.o_proj"})))
    assert got.tolist() == [[2.0] * 4] * 2
    assert got.dtype is torch.bfloat16


def test_sequence_parallel_rows_are_joined_and_the_bucket_s_padding_stripped() -> None:
    rows = torch.arange(16.0).reshape(8, 2)
    layout = _layout(sequence_parallel=frozenset({"model.norm"}), rows=5)
    assert torch.equal(reconstruct("model.norm", rows.chunk(4), layout), rows[:5])


def test_declared_padding_of_features_is_stripped_and_no_other() -> None:
    rows = torch.ones(2, 10)
    assert reconstruct("model.norm", [rows], _layout(features={"model.norm": 8})).shape == (2, 8)
    assert reconstruct("model.layers.0", [rows], _layout(features={"model.norm": 8})).shape == (2, 10)
    with pytest.raises(InputMismatchError, match="10 features captured, 12 declared"):
        reconstruct("model.norm", [rows], _layout(features={"model.norm": 12}))
    with pytest.raises(InputMismatchError, match="2 rows captured, 3 declared"):
        reconstruct("model.norm", [rows], _layout(rows=3))


def test_ranks_of_other_shapes_are_refused() -> None:
    with pytest.raises(InputMismatchError, match="widths"):
        reconstruct(f"{_AT}.query", [torch.ones(2, 4), torch.ones(2, 3)], _layout())
    with pytest.raises(InputMismatchError, match="numbers of rows"):
        reconstruct(f"{_AT}.query", [torch.ones(2, 4), torch.ones(3, 4)], _layout())


def test_a_shuffled_hidden_dimension_is_put_in_order() -> None:
    """2880 features on 128 lanes do not divide; 2944 (padded) do: lane l, tile t holds feature t * 128 + l."""
    order = partition_order(8, 4)
    assert order == [0, 4, 1, 5, 2, 6, 3, 7]
    rows = torch.arange(8.0)[None]
    restore = unshuffled(order)
    assert torch.equal(restore("model.norm", [rows[:, order]], _layout()), rows)
    query = torch.arange(8.0)[None]
    assert torch.equal(restore(f"{_AT}.query", [query], _layout()), query)  # heads are not shuffled
    with pytest.raises(InputMismatchError, match="multiple of 128"):
        partition_order(2880 + 1)
    with pytest.raises(InputMismatchError, match="no permutation"):
        unshuffled([0, 0, 1])
