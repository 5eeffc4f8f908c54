"""Norms of a sum that was not rounded yet.

Engines often fuse the residual addition with the norm behind it (vLLM does): the norm then reads the sum as it is, and
the stream gets it rounded. Transformers rounds first. Both are right, and the unrounded sum is what either is an
approximation of, so the wide reference computes its norm from that. Where single features hold most of a row's
energy, as in trained models, the difference is no small one: one rounding moves the whole row by one factor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from accuracy_core.capture.limits import kind_of

_WIDER = {torch.bfloat16: torch.float32, torch.float16: torch.float32, torch.float32: torch.float64}


@torch.inference_mode()
def norms_of_sums(
    model: Any, order: Sequence[str], target: Mapping[str, torch.Tensor], positions: int
) -> dict[str, torch.Tensor]:
    """Norm's tap -> (positions, features) that `model`'s norm makes of the target's residual sum before it is rounded.

    `order`: taps in order of execution. Only norms whose sum is known: it must give the target's residual stream bit
    for bit when it is rounded. Nothing for a model that is not wider than the target.
    """
    dtype: torch.dtype = next(model.parameters()).dtype
    found = {}
    for stream, following in pairwise(order):
        if not _is_stream(stream) or kind_of(following) != "norm" or stream not in target:
            continue
        rows = target[stream]
        if _WIDER.get(rows.dtype) is not dtype or rows.shape[0] != positions:
            continue
        exact = _sum_behind(stream, order, target, dtype)
        if exact is not None:
            found[following] = model.get_submodule(following)(exact.unsqueeze(0))[0]
    return found


def _sum_behind(
    stream: str, order: Sequence[str], target: Mapping[str, torch.Tensor], dtype: torch.dtype
) -> torch.Tensor | None:
    """The two tensors of the target whose sum, rounded, is the residual stream at `stream`: added, in `dtype`."""
    rows, place = target[stream], order.index(stream)
    # the stream before, or what enters the first layer
    start = next((i for i in reversed(range(place)) if _is_stream(order[i])), 0)
    before = target.get(order[start])
    if before is None:
        return None
    for tap in reversed(order[start + 1 : place]):
        branch = target.get(tap)
        if branch is not None and branch.shape == rows.shape == before.shape:
            exact = before.to(dtype) + branch.to(dtype)
            if torch.equal(exact.to(rows.dtype), rows):
                return exact
    return None


def _is_stream(tap: str) -> bool:
    """Whether a tap is the residual stream: after a layer, or between its attention and its MLP."""
    name = tap.rpartition(".")[2]
    return name == "residual_mid" or name.isdigit()
