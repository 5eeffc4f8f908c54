"""Choice of experts from router logits: where it is a toss-up, and where two sides chose differently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_ROUTERS = ("gate", "router")


def experts_per_token(config: Mapping[str, Any]) -> int:
    """Experts that a token is sent to; 0 for a model without experts."""
    text_config = config.get("text_config") or config
    return int(text_config.get("num_experts_per_tok") or 0)


def router_of(tap: str, taps: Mapping[str, Any]) -> str | None:
    """The router tap that decides what an `experts` (or mixture `mlp`) tap computes; None for any other tap."""
    block = tap.removesuffix(".experts")
    return next((f"{block}.{name}" for name in _ROUTERS if f"{block}.{name}" in taps), None)


def undecided(logits: torch.Tensor, chosen: int) -> torch.Tensor:
    """(positions,) bool: the last chosen and the first rejected expert are as good as equal.

    `logits` (positions, experts) in the target's dtype. Which of two experts within one step of that dtype is taken is
    an accident of the order of operations: both choices are right.
    """
    if chosen <= 0 or logits.shape[1] <= chosen:
        return torch.zeros(logits.shape[0], dtype=torch.bool)
    values = logits.to(torch.float64).topk(chosen + 1, dim=-1).values
    step = torch.finfo(logits.dtype).eps * values.abs().amax(-1)
    return values[:, chosen - 1] - values[:, chosen] <= step


def choice_differs(reference: torch.Tensor, target: torch.Tensor, chosen: int) -> torch.Tensor:
    """(positions,) bool: the two sides send the token to different sets of experts. Both (positions, experts)."""
    if chosen <= 0 or reference.shape != target.shape or reference.shape[1] <= chosen:
        return torch.zeros(target.shape[0], dtype=torch.bool)
    picks = [side.float().topk(chosen, dim=-1).indices.sort(-1).values for side in (reference, target)]
    return (picks[0] != picks[1]).any(-1)
