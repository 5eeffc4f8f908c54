"""Size of an error against the size that the number format explains."""

from __future__ import annotations

import math

import torch

from accuracy_core.numerics.precision import ulp


def linf_floor(reference_max: torch.Tensor, bits: int) -> torch.Tensor:
    """Smallest credible `max |b - f|`: one rounding step of the target's format at `max |f|`. Shape as given."""
    return ulp(reference_max, bits)


def l2_floor(reference_norm: torch.Tensor, bits: int) -> torch.Tensor:
    """Smallest credible `||b - f||`: one rounding of every logit to the target's format. Shape as given.

    Rounding to nearest errs uniformly within half a step, RMS `step / sqrt(12)`, and a step is at most `2^-bits` of the
    value.
    """
    return reference_norm * (2.0**-bits / math.sqrt(12))


def error_ratio(target: torch.Tensor, base: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    """`target / max(base, floor)` per row: how many times the format's own noise the target's error is.

    The floor keeps a reference without noise from dividing by zero. No error at all is ratio 0; an error where neither
    base nor floor explain any is infinite.
    """
    return torch.where(target == 0, 0.0, target / torch.maximum(base, floor))


def relative(size: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """`size / reference` (both `max |.|`, or both `||.||`); 0 where both are 0."""
    return torch.where(size == 0, 0.0, size / reference)
