"""Does the cache hold what attention was given to cache? Tells a fault of the cache from one before it."""

from __future__ import annotations

import torch

from accuracy_core.capture.kv.limits import CACHE_DTYPES
from accuracy_core.capture.kv.sides import KvSides
from accuracy_core.numerics.precision import MANTISSA_BITS

#: how much larger than half a step a rounding may look, for scales that are not powers of two
_SLACK = 1.02


def not_as_given(sides: KvSides, cache_dtype: str = "auto") -> torch.Tensor | None:
    """(heads, positions) bool: rows whose cached values are not those that attention was given; None if unknown.

    A cache of the same or a wider format must hold the values bit for bit; a narrower one (an FP8 cache, whose values
    come multiplied by its scale) may round to the nearest: half a step of the format, and for its small values half the
    smallest step that it can have in this tensor. Values beyond a narrow format's range count as wrong: the scale lets
    them overflow. Rows no longer present do not count.
    """
    if sides.given is None:
        return None
    given, cached = sides.given.double(), sides.target.double()
    same = (given == cached) | (given.isnan() & cached.isnan())
    bits = CACHE_DTYPES.get(cache_dtype, _bits(sides.target))
    if bits < _bits(sides.given):
        nonzero = cached.abs()[(cached != 0) & cached.isfinite()]
        smallest = float(nonzero.min()) if len(nonzero) else 0.0  # not below the smallest step of the format
        room = torch.maximum(given.abs() * 2.0 ** -(bits + 1), torch.full_like(given, smallest / 2))
        same |= (cached - given).abs() <= room * _SLACK
    wrong = ~same.all(-1)
    return wrong if sides.present is None else wrong & sides.present


def _bits(tensor: torch.Tensor) -> int:
    name = str(tensor.dtype).removeprefix("torch.")
    return CACHE_DTYPES.get(name, MANTISSA_BITS.get(name, 23))
