"""An FP32 model that drafts with its weights held as FP16: the same numbers, half the bytes that every step reads.

Weights of a BF16 checkpoint have 8 significant bits and FP16 has 11, so nothing is lost (2**-25 at most where they are
below 2**-17). Activations and sums stay FP32. Decoding a few prompts at once spends its time reading weights: measured
on a 135M model, 8 prompts, one core with AVX2, a step's products take 43 ms instead of 88 ms. What is drafted so is
confirmed by the plain weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from accuracy_core.goldens.memory import WEIGHT_SHARE, free_bytes

#: decoding steps from which on packing pays: it takes as long as some 24 steps save (measured as above)
WORTHWHILE_STEPS = 32
LARGEST = 65504.0  # of FP16


class DraftWeights:
    """Packed weights of those `nn.Linear` layers of an FP32 model that FP16 can hold. Empty where nothing is gained.

    `steps`: forward passes of a few rows that are to come. Packing needs memory for a copy of half the model's size and
    is left out if that is not free, or if this CPU's torch has no such kernels.
    """

    def __init__(self, model: nn.Module, steps: int) -> None:
        self._layers: list[tuple[nn.Linear, _Packed]] = []
        layers = [module for module in model.modules() if type(module) is nn.Linear and "forward" not in vars(module)]
        needed = 2 * sum(layer.weight.numel() for layer in layers)
        if steps < WORTHWHILE_STEPS or needed > WEIGHT_SHARE * free_bytes():
            return
        for layer in layers:
            if fits_half(layer.weight):
                try:
                    self._layers.append((layer, _Packed(layer)))
                except (RuntimeError, AttributeError):  # no kernels for this CPU, or a torch that dropped them
                    return

    def __len__(self) -> int:
        return len(self._layers)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Inside, the model's layers compute with the packed weights."""
        for layer, packed in self._layers:
            layer.forward = packed  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            for layer, _ in self._layers:
                del layer.forward


def fits_half(weight: torch.Tensor) -> bool:
    """Whether every value of a float32 `weight` is a bfloat16 that FP16 does not overflow at."""
    if weight.dtype is not torch.float32 or weight.is_meta or not weight.is_contiguous() or weight.device.type != "cpu":
        return False
    low_halves = weight.detach().view(torch.int32).bitwise_and(0xFFFF)
    return not bool(low_halves.any()) and float(weight.detach().abs().max()) <= LARGEST


class _Packed:
    """Forward of one layer."""

    def __init__(self, layer: nn.Linear) -> None:
        bias = None if layer.bias is None else layer.bias.detach()
        self._weight = torch.ops.quantized.linear_prepack_fp16.default(layer.weight.detach(), bias)
        self._product = torch.ops.quantized.linear_dynamic_fp16.default

    def __call__(self, inputs: torch.Tensor) -> Any:
        return self._product(inputs, self._weight)
