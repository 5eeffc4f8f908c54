"""What a difference is measured by: the dtype's noise on the same rows, or the logits themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from accuracy_core.consistency.difference import Difference, noise_size
from accuracy_core.numerics.precision import mantissa_bits

#: (expected, fp32): rows of the references, (tokens, vocab) each
References = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Yardstick:
    """Of one prompt. `noise` is float64 (rows,); None: differences count relative to the logits.

    `typical` is the root mean square of the noise over all prompts. A single row counts with no less than that: its
    rounding errors may cancel by accident.
    """

    noise: torch.Tensor | None = None
    typical: float = 0.0

    @property
    def unit(self) -> str:
        return "of their own size" if self.noise is None else "times the dtype noise"

    def rows(self, apart: Difference) -> torch.Tensor:
        """Difference of every row, float64 (rows,); infinite for a row that the references do not have."""
        if self.noise is None:
            return apart.relative
        found = torch.full_like(apart.size, torch.inf)
        count = min(len(self.noise), len(found))
        found[:count] = apart.size[:count] / self.noise[:count].clamp(min=self.typical)
        return found


def yardsticks(references: Sequence[References | None], dtype: str) -> list[Yardstick]:
    """One per prompt. By the logits, for all prompts, when one lacks references or `dtype` has no noise (float32)."""
    there = [pair for pair in references if pair is not None]
    if dtype == "float32" or len(there) < len(references):
        return [Yardstick() for _ in references]
    noise = [noise_size(expected, fp32, mantissa_bits(dtype)) for expected, fp32 in there]
    typical = float(torch.cat(noise).square().mean().sqrt()) if noise else 0.0
    return [Yardstick(one, typical) for one in noise]


def pooled(apart: Sequence[Difference], sticks: Sequence[Yardstick]) -> float:
    """All rows together: root of the summed squares of their differences over that of their noise; without noise the
    root mean square of their relative differences. NaN when there is no row."""
    noise = [stick.noise for stick in sticks if stick.noise is not None]
    if len(noise) < len(sticks):
        return float(torch.cat([one.relative for one in apart]).square().mean().sqrt())
    return float(torch.cat([one.size for one in apart]).norm() / torch.cat(noise).norm())
