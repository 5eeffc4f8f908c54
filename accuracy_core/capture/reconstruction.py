"""Whole tensors out of what tensor-parallel ranks captured: joined, de-duplicated, without declared padding.

A reconstruction function takes a canonical tap, its rows on every rank and what the platform declares about them, and
returns (positions, features). Nothing is cut that was not declared: what does not fit fails in the comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from accuracy_core.capture.heads import heads_of
from accuracy_core.errors import InputMismatchError

#: their features are split over the ranks, in the order of ranks
_SPLIT = ("gate_proj", "up_proj", "act", "q_proj", "q_norm", "query", "attn", "lm_head")
_KV = ("k_proj", "v_proj", "k_norm", "key", "value")


@dataclass(frozen=True)
class ShardLayout:
    """What is declared about captured shards.

    `rows`: valid rows, those beyond are padding of a bucket. `features`: valid features per tap, those beyond are
    padding of the hidden size. `sequence_parallel`: taps whose rows are split over the ranks. `partial`: taps captured
    before the all-reduce, whose ranks add up. `whole`: taps that every rank has in full although they are split by
    rule (logits after a gather). `config`: the model's, as in `config.json`.
    """

    config: Mapping[str, Any]
    rows: int | None = None
    features: Mapping[str, int] = field(default_factory=dict)
    sequence_parallel: frozenset[str] = frozenset()
    partial: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset({"lm_head"})


#: (canonical tap, rows of each rank, layout) -> (positions, features)
ReconstructionFn = Callable[[str, Sequence[torch.Tensor], ShardLayout], torch.Tensor]


def reconstruct(tap: str, shards: Sequence[torch.Tensor], layout: ShardLayout) -> torch.Tensor:
    """The default: column-parallel outputs are joined, replicated ones must agree and count once, KV heads that several
    ranks hold count once, partial sums are added in float32, sequence-parallel rows are joined.

    Raises InputMismatchError for ranks that differ in shape, and for copies of one value that are not equal.
    """
    if not shards:
        raise InputMismatchError(f"{tap}: no rank captured it")
    shapes = {tuple(shard.shape[1:]) for shard in shards}
    if len(shapes) > 1:
        raise InputMismatchError(f"{tap}: ranks have different widths {sorted(shapes)}")
    rows = _joined(tap, shards, layout) if len(shards) > 1 else shards[0]
    return strip_padding(tap, rows, layout)


def strip_padding(tap: str, rows: torch.Tensor, layout: ShardLayout) -> torch.Tensor:
    """Without the rows and features that the layout declares to be padding. Raises InputMismatchError for fewer."""
    if layout.rows is not None:
        if rows.shape[0] < layout.rows:
            raise InputMismatchError(f"{tap}: {rows.shape[0]} rows captured, {layout.rows} declared valid")
        rows = rows[: layout.rows]
    valid = layout.features.get(tap)
    if valid is not None:
        if rows.shape[1] < valid:
            raise InputMismatchError(f"{tap}: {rows.shape[1]} features captured, {valid} declared valid")
        rows = rows[:, :valid]
    return rows


def unshuffled(order: Sequence[int], base: ReconstructionFn = reconstruct) -> ReconstructionFn:
    """A reconstruction for a platform that keeps the hidden dimension in another order.

    `order[i]` is the model's feature that stands at place i. Taps of other widths are left as they are. Raises
    InputMismatchError when `order` is no permutation.
    """
    place = torch.tensor(list(order))
    if place.sort().values.tolist() != list(range(len(order))):
        raise InputMismatchError(f"order of {len(order)} features is no permutation")
    inverse = place.argsort()

    def restore(tap: str, shards: Sequence[torch.Tensor], layout: ShardLayout) -> torch.Tensor:
        rows = base(tap, shards, layout)
        is_hidden = heads_of(tap, layout.config) == 1 and rows.shape[1] == len(order)
        return rows[:, inverse] if is_hidden else rows

    return restore


def partition_order(hidden: int, partitions: int = 128) -> list[int]:
    """Order of a hidden dimension laid out over `partitions` lanes: feature `tile * partitions + lane` stands at
    `lane * tiles + tile`, as tiled on-chip memory keeps it (GPT-OSS on trn3). Raises InputMismatchError unless it
    divides."""
    if partitions < 1 or hidden % partitions:
        raise InputMismatchError(f"hidden size {hidden} is not a multiple of {partitions} partitions")
    return torch.arange(hidden).reshape(hidden // partitions, partitions).T.flatten().tolist()


def _joined(tap: str, shards: Sequence[torch.Tensor], layout: ShardLayout) -> torch.Tensor:
    name = tap.rpartition(".")[2]
    if tap in layout.sequence_parallel:
        return torch.cat(list(shards))
    counts = {shard.shape[0] for shard in shards}
    if len(counts) > 1:
        raise InputMismatchError(f"{tap}: ranks have different numbers of rows {sorted(counts)}")
    if tap in layout.partial:
        return torch.stack([shard.float() for shard in shards]).sum(0).to(shards[0].dtype)
    if name in _KV:
        copies = max(1, len(shards) // heads_of(tap, layout.config))
        groups = [_one_of(tap, shards[start : start + copies]) for start in range(0, len(shards), copies)]
        return torch.cat(groups, dim=1)
    if name in _SPLIT and tap not in layout.whole:
        return torch.cat(list(shards), dim=1)
    return _one_of(tap, shards)


def _one_of(tap: str, copies: Sequence[torch.Tensor]) -> torch.Tensor:
    first = copies[0]
    for rank, other in enumerate(copies[1:], start=1):
        if not torch.equal(torch.nan_to_num(first), torch.nan_to_num(other)):
            where = int((first != other).any(1).nonzero()[0])
            raise InputMismatchError(f"{tap}: copy {rank} differs from the first at position {where}")
    return first
