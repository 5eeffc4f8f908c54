"""KV heads of tensor-parallel ranks, put together."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from accuracy_core.errors import InputMismatchError


def combine_ranks(
    parts: Sequence[torch.Tensor], num_kv_heads: int | None = None
) -> tuple[torch.Tensor, tuple[tuple[int, int], ...]]:
    """One tensor (num_kv_heads, …) out of one (heads of the rank, …) per rank, in rank order.

    Ranks hold neighbouring heads. With more ranks than KV heads, `ranks / num_kv_heads` neighbouring ranks hold the
    same head; the first copy is taken. The second item names (head, rank) of copies that differ from it: a rank that
    computed something else than its twin. `num_kv_heads` None: nothing is replicated.

    Raises InputMismatchError when ranks differ in shape or their heads do not add up to `num_kv_heads`.
    """
    shapes = [tuple(part.shape) for part in parts]
    if not parts or len(set(shapes)) > 1:
        raise InputMismatchError(f"tensor-parallel ranks hold KV of different shapes: {shapes}")
    held = sum(shape[0] for shape in shapes)
    wanted = held if num_kv_heads is None else num_kv_heads
    copies, rest = divmod(held, max(wanted, 1))
    if wanted < 1 or rest or copies < 1 or (copies > 1 and shapes[0][0] != 1):
        raise InputMismatchError(
            f"{len(parts)} ranks with {shapes[0][0]} KV heads each do not give the model's {wanted} heads"
        )
    if copies == 1:
        return torch.cat(list(parts)), ()
    disagreeing = tuple(
        (rank // copies, rank)
        for rank, part in enumerate(parts)
        if rank % copies and not _same(part, parts[rank - rank % copies])
    )
    return torch.cat(list(parts[::copies])), disagreeing


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(torch.equal(a.float().nan_to_num(nan=1e38), b.float().nan_to_num(nan=1e38)))
