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
#: name of a layer -> its e4m3 bytes and its scales
Stored = dict[str, tuple[torch.Tensor, torch.Tensor]]


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


def quantise_linears(model: nn.Module) -> Stored:
    """Bytes and scales of every linear layer but lm_head."""
    return {
        name: quantise(module.weight)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not name.endswith("lm_head")
    }


@contextmanager
def holding(model: nn.Module, stored: Stored) -> Iterator[None]:
    """Inside, the layers in `stored` hold those bytes, dequantised into the model's dtype; their own come back."""
    weights = {name: model.get_parameter(f"{name}.weight") for name in stored}
    kept = {name: weight.data for name, weight in weights.items()}
    try:
        for name, weight in weights.items():
            weight.data = dequantise(*stored[name]).to(weight.dtype)
        yield
    finally:
        for name, weight in weights.items():
            weight.data = kept[name]


def quantisation_noise(
    fp32: Any, narrow: Any, fp32_logits: torch.Tensor, run: Callable[[Any], torch.Tensor]
) -> QuantisationNoise:
    """The low-precision model with FP8 weights against FP32 weights, and against FP32 arithmetic on the same bytes.

    `fp32` and `narrow` are one checkpoint in two dtypes, `run(model)` gives logits (rows, vocab). The bytes are made
    once, from the FP32 weights: quantising what bfloat16 has rounded gives others.
    """
    stored = quantise_linears(fp32)
    with holding(narrow, stored):
        target = run(narrow)
    with holding(fp32, stored):
        same_bytes = run(fp32)
    return QuantisationNoise(
        against_fp32_weights=relative_error(target, fp32_logits),
        against_same_bytes=relative_error(target, same_bytes),
        layers=len(stored),
    )
