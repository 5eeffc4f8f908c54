"""Paged caches become contiguous ones: by hand, and for any layout, block table and number of ranks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accuracy_core import reconstruct_contiguous_kv
from accuracy_core.capture.kv import combine_ranks
from accuracy_core.errors import InputMismatchError


def test_three_tokens_in_two_blocks_by_hand():
    # blocks of 2 tokens, one head, head_dim 2; the request's blocks are 2 and 0
    cache = torch.zeros(3, 1, 2, 4)  # BHNC: K beside V
    cache[2, 0, 0] = torch.tensor([1.0, 2.0, 10.0, 20.0])
    cache[2, 0, 1] = torch.tensor([3.0, 4.0, 30.0, 40.0])
    cache[0, 0, 0] = torch.tensor([5.0, 6.0, 50.0, 60.0])
    cache[0, 0, 1] = 99.0  # beyond the request
    got = reconstruct_contiguous_kv(cache, [2, 0], 3)
    assert got.key.tolist() == [[[1, 2], [3, 4], [5, 6]]]
    assert got.value.tolist() == [[[10, 20], [30, 40], [50, 60]]]
    assert got.present.tolist() == [True] * 3


def test_blocks_given_back_are_missing_not_garbage():
    cache = torch.full((4, 1, 2, 2), 7.0)
    got = reconstruct_contiguous_kv(cache, [0, -1, 3], 6, null_block=0)
    assert got.present.tolist() == [False, False, False, False, True, True]
    assert got.key[0, :, 0].tolist() == [0, 0, 0, 0, 7, 7]


def test_a_sliding_window_hides_older_tokens_in_blocks_that_are_still_there():
    cache = torch.ones(3, 1, 2, 2)
    got = reconstruct_contiguous_kv(cache, [0, 1, 2], 5, sliding_window=3)
    assert got.present.tolist() == [False, False, True, True, True]


def test_ranks_with_their_own_heads_are_concatenated():
    parts = [torch.full((2, 1), float(rank)) for rank in range(2)]
    whole, differ = combine_ranks(parts, 4)
    assert whole.flatten().tolist() == [0, 0, 1, 1]
    assert differ == ()


def test_replicated_heads_are_taken_once_and_compared():
    # 2 KV heads on 4 ranks: ranks 0 and 1 hold head 0, ranks 2 and 3 head 1; rank 3 computed something else
    parts = [torch.full((1, 3), float(head)) for head in (0, 0, 1, 1)]
    parts[3][0, 2] = 5.0
    whole, differ = combine_ranks(parts, 2)
    assert whole[:, 0].tolist() == [0, 1]
    assert differ == ((1, 3),)


@pytest.mark.parametrize(("shapes", "heads"), [([(2, 3), (1, 3)], 3), ([(2, 3), (2, 3)], 3), ([(2, 3), (2, 3)], 2)])
def test_ranks_that_do_not_add_up_are_refused(shapes, heads):
    with pytest.raises(InputMismatchError):
        combine_ranks([torch.zeros(shape) for shape in shapes], heads)


@pytest.mark.parametrize(
    ("cache", "table", "tokens", "layout", "says"),
    [
        (torch.zeros(2, 1, 2, 4), [0], 3, "BHNC", "need 2 blocks, the block table has 1"),
        (torch.zeros(2, 1, 2, 4), [0, 9], 3, "BHNC", "block 9, the cache has 2"),
        (torch.zeros(2, 1, 2, 4), [0], 1, "BHND", "where is V"),
        (torch.zeros(2, 1, 2, 4), [0], 1, "BHN2", "does not fit"),
        (torch.zeros(2, 1, 2, 5), [0], 1, "BHNC", "must be even"),
        (torch.zeros(2, 1, 2), [0], 1, "BHNC", "has 4 axes"),
        ((torch.zeros(2, 1, 2, 4),) * 2, [0], 1, "BHNQ", "must name each of"),
        ([], [0], 1, "BHNC", "list of ranks is empty"),
    ],
)
def test_what_does_not_fit_is_named(cache, table, tokens, layout, says):
    with pytest.raises(InputMismatchError, match=says):
        reconstruct_contiguous_kv(cache, table, tokens, layout=layout)


def _paged(key, value, table, blocks, size, layout):
    """Write K and V (heads, tokens, dim) slot by slot into an empty cache of `layout`."""
    if isinstance(layout, tuple):
        return tuple(_one(x, table, blocks, size, way) for x, way in zip((key, value), layout, strict=True))
    if "2" in layout:
        rest = layout.replace("2", "")
        both = [_one(x, table, blocks, size, rest) for x in (key, value)]
        return torch.stack(both, dim=layout.index("2"))
    both = torch.cat([key, value], -1)
    return _one(both, table, blocks, size, layout.replace("C", "D"))


def _one(x, table, blocks, size, layout):
    heads, tokens, dim = x.shape
    inner = 2 if "X" in layout else 1
    axes = {"B": blocks, "H": heads, "N": size, "D": dim // inner, "X": inner}
    cache = torch.full([axes[letter] for letter in layout], -1.0)
    for head in range(heads):
        for token in range(tokens):
            for d in range(dim):
                place = {"B": table[token // size], "H": head, "N": token % size, "D": d // inner, "X": d % inner}
                cache[tuple(place[letter] for letter in layout)] = x[head, token, d]
    return cache


LAYOUTS = ["BHNC", "BNHC", "2BNHD", "B2NHD", "2BHND", ("BHND", "BHND"), ("BHDN", "BNHD"), ("BHDNX", "BHDN")]


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_layout_table_and_split_gives_the_same_cache_back(data):
    ranks, heads = data.draw(st.sampled_from([(1, 2), (2, 2), (2, 1), (4, 2)]), label="ranks, heads")
    size, tokens = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9))
    layout = data.draw(st.sampled_from(LAYOUTS))
    needed = -(-tokens // size)
    blocks = needed + data.draw(st.integers(0, 3))
    table = data.draw(st.permutations(range(blocks)))[:needed]
    key = torch.arange(heads * tokens * 4, dtype=torch.float32).view(heads, tokens, 4)
    value = -key - 1
    copies = max(1, ranks // heads)
    per_rank = max(1, heads // ranks)
    caches = []
    for rank in range(ranks):
        mine = slice(rank // copies * per_rank, rank // copies * per_rank + per_rank)
        caches.append(_paged(key[mine], value[mine], table, blocks, size, layout))
    got = reconstruct_contiguous_kv(
        caches if ranks > 1 else caches[0], table, tokens, layout=layout, num_kv_heads=heads
    )
    assert torch.equal(got.key, key)
    assert torch.equal(got.value, value)
    assert got.disagreeing == ()
