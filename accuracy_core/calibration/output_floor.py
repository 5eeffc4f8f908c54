"""How far two right implementations are apart that accumulate in FP32 and round once to bfloat16."""

from __future__ import annotations

import math

import torch

from accuracy_core.calibration.relative_error import relative_error
from accuracy_core.schemas.base import Part

#: unit in the last place of bfloat16, relative to a value of 1
ULP_BF16 = 2.0**-7


#: disagreements in FP32 that the floor is measured at
DELTAS = (1e-6, 1e-5, 1e-4, 1e-3)


class OutputFloor(Part):
    """`delta`: their relative disagreement in FP32; `measured` and `predicted`: after rounding to bfloat16."""

    delta: float
    measured: float
    predicted: float


def predicted_floor(delta: float, ulp: float = ULP_BF16) -> float:
    """`sqrt(delta * ulp)`: values that differ by delta round apart only where a rounding boundary lies between them.

    That is a share of about delta/ulp of the elements, each of which then differs by a whole ulp: squared, delta * ulp.
    """
    return math.sqrt(delta * ulp)


def measure_floor(delta: float, *, elements: int = 200_000, seed: int = 0) -> OutputFloor:
    """Round two normal tensors whose elements differ by `delta` (relative, RMS)."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randn(elements, generator=generator, dtype=torch.float64)
    second = first * (1 + delta * torch.randn(elements, generator=generator, dtype=torch.float64))
    measured = relative_error(second.to(torch.bfloat16).double()[None], first.to(torch.bfloat16).double()[None])
    return OutputFloor(
        delta=relative_error(second[None], first[None]), measured=measured, predicted=predicted_floor(delta)
    )
