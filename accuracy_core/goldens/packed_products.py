"""Weights laid out for products with a few rows, as batched decoding has them: a fifth faster than torch's default.

Only the draft of greedy decoding uses this; what is stored comes from plain forward passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from accuracy_core.goldens.memory import WEIGHT_SHARE, free_bytes


@contextmanager
def packed_weights(model: nn.Module, rows: int) -> Iterator[int]:
    """Inside, products of FP32 `nn.Linear` layers with exactly `rows` rows use packed copies; how many layers do.

    None do for a single row, where the copies would not fit into the free memory, or where this torch cannot pack.
    """
    layers = [
        module
        for module in model.modules()
        if type(module) is nn.Linear and module.weight.dtype is torch.float32 and "forward" not in module.__dict__
    ]
    needed = sum(layer.weight.numel() * 4 for layer in layers)
    packed: list[nn.Linear] = []
    try:
        if rows > 1 and needed <= free_bytes() * WEIGHT_SHARE:
            for layer in layers:
                layer.forward = _Packed(layer, rows)  # type: ignore[method-assign, assignment]
                packed.append(layer)
    except (AttributeError, RuntimeError):  # private operators: another torch may not have them
        pass
    try:
        yield len(packed)
    finally:
        for layer in packed:
            del layer.forward


class _Packed:
    """Forward of one layer."""

    def __init__(self, layer: nn.Linear, rows: int) -> None:
        self._weight, self._bias, self._rows = layer.weight.detach(), layer.bias, rows
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self._weight, rows)

    def __call__(self, inputs: torch.Tensor) -> Any:
        if inputs.numel() != self._rows * inputs.shape[-1]:
            return F.linear(inputs, self._weight, self._bias)
        return torch.ops.mkldnn._linear_pointwise(inputs, self._packed, self._bias, "none", [], "")
