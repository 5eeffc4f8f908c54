"""What is compared: K and V of one layer on three sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Which = Literal["key", "value"]
WHICH: tuple[Which, Which] = ("key", "value")


@dataclass(frozen=True)
class KvSides:
    """One layer's K or V, (kv_heads, positions, head_dim) in any float dtype.

    `target`: the cached values as attention uses them, a quantised cache's multiplied by its scale. `given`: what the
    target's attention was handed to be cached, where that was tapped. `present` (positions,) bool: False where the
    target no longer holds the row (sliding window); None: all are there.
    """

    fp32: torch.Tensor
    expected: torch.Tensor
    target: torch.Tensor
    given: torch.Tensor | None = None
    present: torch.Tensor | None = None


@dataclass(frozen=True)
class LayerKv:
    """One layer. `disagreeing`: (head, tensor-parallel rank) of copies of a head that are not equal."""

    layer: int
    key: KvSides
    value: KvSides
    disagreeing: tuple[tuple[int, int], ...] = ()

    def side(self, which: Which) -> KvSides:
        return self.key if which == "key" else self.value
