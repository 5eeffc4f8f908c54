"""From measured errors to a tolerance."""

from __future__ import annotations

import math
from collections.abc import Mapping

from accuracy_core.errors import ConfigurationError

#: a tolerance is this many times the expected error
MARGIN = 2.0
#: a gate is worth having when a known-wrong implementation is this far above it, and a right one this far below
LEAST_DISCRIMINATION = 10.0
LEAST_MARGIN = 1.5


def tolerance(noise_floor: float, implementation_errors: Mapping[str, float]) -> float:
    """`2 * sqrt(noise_floor^2 + error^2)` of the worst legitimate variant: both are independent, so squares add.

    Raises ConfigurationError when nothing was measured or something is not finite.
    """
    if not implementation_errors:
        raise ConfigurationError("no variant was measured: there is nothing to make a tolerance from")
    worst = max(implementation_errors.values())
    if not (math.isfinite(worst) and math.isfinite(noise_floor)):
        raise ConfigurationError(f"the measured error is {worst}, the noise floor {noise_floor}: no tolerance")
    return MARGIN * math.hypot(noise_floor, worst)


def discrimination(wrong_error: float, allowed: float) -> float:
    """How many times a known-wrong implementation exceeds the tolerance; wanted: 10 or more."""
    return wrong_error / allowed if allowed else math.inf


def margin(right_error: float, allowed: float) -> float:
    """How many times a right implementation stays below the tolerance; wanted: 1.5 or more."""
    return allowed / right_error if right_error else math.inf
