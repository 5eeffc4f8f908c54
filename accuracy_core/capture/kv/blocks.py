"""Paged KV caches to contiguous K and V: block tables, layouts, sliding windows, tensor-parallel ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from accuracy_core.capture.kv.ranks import combine_ranks
from accuracy_core.errors import InputMismatchError

#: one rank's cache of one layer: one tensor that holds both, or (key cache, value cache)
RankCache = torch.Tensor | tuple[torch.Tensor, torch.Tensor]

_AXES = {
    "B": "blocks",
    "N": "slots of a block",
    "H": "KV heads",
    "D": "head_dim",
    "C": "K beside V, 2 * head_dim",
    "2": "K, V",
    "X": "innermost part of head_dim",
}


@dataclass(frozen=True)
class ContiguousKv:
    """`key` (kv_heads, tokens, head_dim), `value` (kv_heads, tokens, head_dim of V), both in the cache's dtype.

    `present` (tokens,) bool: False where the block was given back (sliding window); the values there mean nothing and
    are zero. `disagreeing`: (head, rank) of replicated heads whose copies are not equal.
    """

    key: torch.Tensor
    value: torch.Tensor
    present: torch.Tensor
    disagreeing: tuple[tuple[int, int], ...] = ()


def reconstruct_contiguous_kv(
    kv_cache: RankCache | Sequence[RankCache],
    block_table: Sequence[int] | torch.Tensor,
    num_tokens: int,
    *,
    layout: str | tuple[str, str] = "BHNC",
    num_kv_heads: int | None = None,
    null_block: int | None = None,
    sliding_window: int | None = None,
) -> ContiguousKv:
    """K and V of one request and layer in the order of its tokens, out of a paged cache.

    `kv_cache`: the layer's cache on one rank, or a list with one per tensor-parallel rank. `block_table`: the
    request's block ids in order; all ranks share it. A negative id, or `null_block`, is a block that was given back.
    `num_tokens`: tokens in the cache (prompt and outputs, without the last, which is never run).

    `layout` names the axes, one letter each: `B` blocks, `N` slots of a block, `H` KV heads, `D` head_dim; `2` an axis
    with K and V, `C` K beside V in one axis of 2 * head_dim; `X` the innermost part of a split head_dim
    (`BHDNX`: x neighbouring elements are kept together). A pair of layouts is for K and V apart. Examples: `BHNC`
    and `2BNHD`, `B2NHD` (vLLM), `BHND` for a pair of tensors (Neuron), (`BHDNX`, `BHDN`) (paged attention).

    `num_kv_heads`: heads of the whole model; needed to tell ranks with their own heads from replicas.
    `sliding_window`: tokens the layer keeps; older ones are marked missing even if their block is still there, since
    it may have been overwritten.

    Raises InputMismatchError for a layout that does not fit, too few blocks, or ids outside the cache.
    """
    if isinstance(kv_cache, torch.Tensor) or _is_pair(kv_cache):
        ranks: list[RankCache] = [kv_cache]  # type: ignore[list-item]
    else:
        ranks = list(kv_cache)  # type: ignore[arg-type]
    if not ranks:
        raise InputMismatchError("no KV cache was given: the list of ranks is empty")
    sides = [_canonical(cache, layout) for cache in ranks]
    ids = torch.as_tensor(block_table, dtype=torch.int64).flatten()
    block_size = sides[0][0].shape[2]
    needed = -(-num_tokens // block_size)
    if num_tokens < 0 or len(ids) < needed:
        raise InputMismatchError(
            f"{num_tokens} tokens in blocks of {block_size} need {needed} blocks, the block table has {len(ids)}"
        )
    ids = ids[:needed]
    freed = ids < 0
    if null_block is not None:
        freed |= ids == null_block
    blocks = min(side[0].shape[0] for side in sides)
    wrong = ids[~freed & (ids >= blocks)]
    if len(wrong):
        raise InputMismatchError(f"the block table names block {int(wrong[0])}, the cache has {blocks}")
    present = ~freed.repeat_interleave(block_size)[:num_tokens]
    if sliding_window is not None:
        present &= torch.arange(num_tokens) >= num_tokens - sliding_window
    taken = torch.where(freed, 0, ids)
    keys = [_gather(key, taken, num_tokens, present) for key, _ in sides]
    values = [_gather(value, taken, num_tokens, present) for _, value in sides]
    key, wrong_key = combine_ranks(keys, num_kv_heads)
    value, wrong_value = combine_ranks(values, num_kv_heads)
    return ContiguousKv(key, value, present, tuple(sorted({*wrong_key, *wrong_value})))


def _is_pair(cache: object) -> bool:
    return isinstance(cache, tuple) and len(cache) == 2 and all(isinstance(item, torch.Tensor) for item in cache)


def _gather(cache: torch.Tensor, ids: torch.Tensor, tokens: int, present: torch.Tensor) -> torch.Tensor:
    """(blocks, heads, slots, dim) to (heads, tokens, dim)."""
    rows = cache[ids.to(cache.device)].permute(1, 0, 2, 3)
    rows = rows.reshape(rows.shape[0], -1, rows.shape[3])[:, :tokens]
    return torch.where(present.to(rows.device)[None, :, None], rows, torch.zeros((), dtype=rows.dtype))


def _canonical(cache: RankCache, layout: str | tuple[str, str]) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V, (blocks, heads, slots, head_dim) each."""
    if isinstance(cache, torch.Tensor):
        if not isinstance(layout, str):
            raise InputMismatchError("a pair of layouts needs a pair of tensors: (key cache, value cache)")
        if "2" in layout:
            axis = layout.index("2")
            if cache.ndim != len(layout) or cache.shape[axis] != 2:
                raise InputMismatchError(f"layout {layout!r} does not fit a cache of shape {tuple(cache.shape)}")
            rest = layout.replace("2", "")
            return _permuted(cache.select(axis, 0), rest), _permuted(cache.select(axis, 1), rest)
        if "C" not in layout:
            raise InputMismatchError(f"layout {layout!r} of a single tensor has neither '2' nor 'C': where is V?")
        both = _permuted(cache, layout.replace("C", "D"))
        if both.shape[3] % 2:
            raise InputMismatchError(f"axis C of {tuple(cache.shape)} holds K beside V and must be even")
        key, value = both.split(both.shape[3] // 2, dim=-1)
        return key, value
    first, second = (layout, layout) if isinstance(layout, str) else layout
    return _permuted(cache[0], first), _permuted(cache[1], second)


def _permuted(cache: torch.Tensor, layout: str) -> torch.Tensor:
    wanted = "BHNDX" if "X" in layout else "BHND"
    if sorted(layout) != sorted(wanted):
        known = ", ".join(f"{letter} ({meaning})" for letter, meaning in _AXES.items())
        raise InputMismatchError(f"layout {layout!r} must name each of {', '.join(wanted)} once; letters: {known}")
    if cache.ndim != len(layout):
        raise InputMismatchError(f"layout {layout!r} has {len(layout)} axes, the cache is {tuple(cache.shape)}")
    ordered = cache.permute([layout.index(letter) for letter in wanted])
    return ordered.flatten(-2) if "X" in layout else ordered
