"""The documented top-k tolerance map, parsed once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accuracy_core.errors import ConfigurationError


@dataclass(frozen=True)
class TopK:
    """One slice of the map. `k` None stands for "all"."""

    key: str
    k: int | None
    atol: float
    rtol: float


def parse_tolerance_map(tol_map: Mapping[Any, Any]) -> tuple[TopK, ...]:
    """`{"5": (atol, rtol), …, "all": (atol, rtol)}` to slices, smallest first, "all" last.

    Raises ConfigurationError for an empty map, a key that is neither a positive whole number nor "all", or a value that
    is not a pair of finite non-negative numbers.
    """
    if not tol_map:
        raise ConfigurationError("the tolerance map is empty", fix='give at least {"all": (1e-5, 0.05)}')
    slices = [_slice(key, value) for key, value in tol_map.items()]
    keys = [s.k for s in slices]
    if len(set(keys)) != len(keys):
        raise ConfigurationError(f"the tolerance map names a k twice: {list(tol_map)}")
    return tuple(sorted(slices, key=lambda s: math.inf if s.k is None else s.k))


def _slice(key: object, value: Any) -> TopK:
    name = str(key)
    if name != "all" and not (name.isascii() and name.isdigit() and int(name) > 0):
        raise ConfigurationError(
            f"tolerance key {key!r} is no positive whole number and not 'all'", fix='keys are "5", "50", …, "all"'
        )
    try:
        atol, rtol = (float(v) for v in value)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"tolerance of key {name!r} is no (atol, rtol) pair: {value!r}") from error
    if not (math.isfinite(atol) and math.isfinite(rtol) and atol >= 0 and rtol >= 0):
        raise ConfigurationError(f"tolerance of key {name!r} must be finite and not negative, got {value!r}")
    return TopK(name, None if name == "all" else int(name), atol, rtol)
