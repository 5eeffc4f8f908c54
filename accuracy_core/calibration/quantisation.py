"""FP8 weights: what quantising costs, and what a kernel on the same bytes may cost, which is not the same thing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from accuracy_core.calibration.relative_error import relative_error
from accuracy_core.schemas.base import Part

E4M3_MAX = 448.0


class QuantisationNoise(Part):
    """Relative errors over all logits."""

    against_fp32_weights: float
    against_same_bytes: float
    layers: int


def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(e4m3 (rows, columns), float32 scale (rows, 1)): one scale per output channel, absmax to 448."""
    wide = weight.detach().float()
    scale = (wide.abs().amax(-1, keepdim=True) / E4M3_MAX).clamp(min=torch.finfo(torch.float32).tiny)
    return (wide / scale).to(torch.float8_e4m3fn), scale


def dequantise(narrow: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """float32 (rows, columns)."""
    return narrow.float() * scale


@contextmanager
def quantised(model: nn.Module) -> Iterator[int]:
    """Inside, every linear layer but lm_head holds weights that went through e4m3, in the model's dtype.

    Yields the number of layers. The weights come back on leaving.
    """
    layers = [m for name, m in model.named_modules() if isinstance(m, nn.Linear) and not name.endswith("lm_head")]
    kept = [layer.weight.data for layer in layers]
    try:
        for layer in layers:
            layer.weight.data = dequantise(*quantise(layer.weight.data)).to(layer.weight.dtype)
        yield len(layers)
    finally:
        for layer, weight in zip(layers, kept, strict=True):
            layer.weight.data = weight


def quantisation_noise(
    fp32: Any, narrow: Any, fp32_logits: torch.Tensor, run: Callable[[Any], torch.Tensor]
) -> QuantisationNoise:
    """The low-precision model with FP8 weights against FP32 weights, and against FP32 arithmetic on the same bytes.

    `fp32` and `narrow` are one checkpoint in two dtypes, `run(model)` gives logits (rows, vocab).
    """
    with quantised(narrow) as layers:
        target = run(narrow)
    with quantised(fp32):
        same_bytes = run(fp32)
    return QuantisationNoise(
        against_fp32_weights=relative_error(target, fp32_logits),
        against_same_bytes=relative_error(target, same_bytes),
        layers=layers,
    )
