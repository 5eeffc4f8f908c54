"""Do both sides favour the same tokens?"""

from __future__ import annotations

import torch


def top_overlap(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Share of the ids in `a` (rows, k) that are also in `b` (rows, k): (rows,) in [0, 1]."""
    return (a.unsqueeze(2) == b.unsqueeze(1)).any(2).double().mean(1)
