"""Rounding steps of the number formats a target may compute in."""

from __future__ import annotations

import torch

from accuracy_core.errors import ConfigurationError

#: explicitly stored mantissa bits
MANTISSA_BITS = {"bfloat16": 7, "float16": 10, "float32": 23}


def mantissa_bits(dtype: str | torch.dtype) -> int:
    """Stored mantissa bits of `dtype` ("bfloat16" or torch.bfloat16, …). Raises ConfigurationError for others."""
    name = str(dtype).removeprefix("torch.")
    try:
        return MANTISSA_BITS[name]
    except KeyError:
        raise ConfigurationError(
            f"target dtype {name!r} has no rounding step here, known: {', '.join(MANTISSA_BITS)}",
            fix="pass the dtype that the target's logits are computed in",
        ) from None


def ulp(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Unit in the last place at `|x|`: `2^(floor(log2 |x|) - bits)`, same shape as `x`; 0 at 0, NaN at NaN and inf."""
    exponent = torch.frexp(x.abs().double()).exponent - 1  # frexp's mantissa lies in [.5, 1)
    step = torch.ldexp(torch.ones_like(x, dtype=torch.float64), exponent - bits)
    step = torch.where(x == 0, 0.0, step)
    return torch.where(torch.isfinite(x), step, torch.nan)
