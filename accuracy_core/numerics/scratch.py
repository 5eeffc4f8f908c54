"""Buffers of one chunk, used again by the next: fresh ones would cost more in page faults than the arithmetic."""

from __future__ import annotations

import math

import torch


class Scratch:
    """Named buffers. A name stands for one use at a time: asking again hands out the same memory.

    Few are used, so that a chunk stays in cache: "errors" hold the errors of the sides for as long as the chunk lasts;
    "first" the centred reference, then probabilities, then signs; "second" t - e, then the growth of probabilities;
    "product" is `dot`'s.
    """

    def __init__(self) -> None:
        self._held: dict[str, torch.Tensor] = {}

    def take(self, name: str, x: torch.Tensor, shape: torch.Size | tuple[int, ...] | None = None) -> torch.Tensor:
        """An uninitialised tensor of `shape` (None: that of `x`) and the dtype of `x`, valid until asked for again."""
        shape = x.shape if shape is None else shape
        size = math.prod(shape)
        held = self._held.get(name)
        if held is None or held.dtype != x.dtype or held.numel() < size or held.device != x.device:
            held = self._held[name] = torch.empty(size, dtype=x.dtype, device=x.device)
        return held[:size].view(shape)


def dot(a: torch.Tensor, b: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """`sum a b` over the last dimension, kept as 1, with broadcasting of `a`. torch's own batched dot is several times
    slower on a CPU.
    """
    return torch.mul(a, b, out=scratch.take("product", b)).sum(-1, keepdim=True)
