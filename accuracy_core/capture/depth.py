"""How the error of the residual stream grows with depth."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import torch

from accuracy_core.capture.tensor_error import TensorError
from accuracy_core.schemas.tensor_result import DepthGrowth

_LAYER_OUTPUT = re.compile(r"^(?:\w+\.)+(?:layers|h)\.(\d+)$")


def depth_growth(errors: Mapping[str, TensorError], min_layers: int) -> DepthGrowth | None:
    """Relative L2 error of every layer's output and the exponent of its growth; None without any layer output.

    The exponent is the slope of a least-squares line through log error over log (layer + 1); NaN with fewer than
    `min_layers` layers or where an error is 0 or not finite.
    """
    found = sorted((int(match[1]), tap) for tap in errors if (match := _LAYER_OUTPUT.match(tap)))
    if not found:
        return None
    layers = [layer for layer, _ in found]
    error = [_relative(errors[tap].target, errors[tap].norm) for _, tap in found]
    base = [_relative(errors[tap].base, errors[tap].norm) for _, tap in found]
    return DepthGrowth(
        layers=layers,
        error=error,
        base_error=base,
        exponent=_exponent(layers, error, min_layers),
        base_exponent=_exponent(layers, base, min_layers),
    )


def progression(errors: Mapping[str, TensorError]) -> dict[str, list[float]]:
    """Layer output tap -> relative L2 error per position."""
    result = {}
    for tap, error in errors.items():
        if _LAYER_OUTPUT.match(tap):
            ratio = (error.target.sum(1) / error.norm.sum(1)).sqrt()
            result[tap] = torch.where(error.nonfinite.sum(1) > 0, torch.nan, ratio).tolist()
    return result


def _relative(error: torch.Tensor, norm: torch.Tensor) -> float:
    total = float(norm.sum())
    return math.sqrt(float(error.sum()) / total) if total > 0 else float("nan")


def _exponent(layers: list[int], error: list[float], min_layers: int) -> float:
    if len(layers) < min_layers or not all(math.isfinite(value) and value > 0 for value in error):
        return float("nan")
    x = torch.tensor(layers, dtype=torch.float64).add(1).log()
    y = torch.tensor(error, dtype=torch.float64).log()
    x = x - x.mean()
    return float((x * (y - y.mean())).sum() / x.square().sum())
