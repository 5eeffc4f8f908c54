"""Is an error the same for every seed, or is a tolerance taken from few seeds a lottery?"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import Field

from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas.base import Part

#: seeds that a first look takes; what comes after it shows whether the tail still grows
FIRST = 20
#: seeds of a calibration, and of a quick one
SEEDS, QUICK_SEEDS = 80, 20


class SeedStability(Part):
    """Errors over seeds. `spread`: largest over smallest, 1 for equal ones."""

    seeds: int
    least: float
    most: float
    spread: float
    exact: bool = Field(description="every error is 0")
    most_of_first: float = Field(description="largest error of the first 20 seeds")
    tail_grows: bool = Field(description="later seeds exceed the first 20 by more than a tenth")
    headroom: float = Field(description="tolerance over the worst seed's error; infinite for exact ones")
    errors: list[float] = Field(description="one for each seed, in order")


def check_seeds(count: int) -> None:
    """Raises ConfigurationError for fewer than 20 seeds."""
    if count < FIRST:
        raise ConfigurationError(
            f"{count} seeds are too few for a statement about the tail", fix=f"use at least {FIRST}"
        )


def seed_stability(errors: Sequence[float], allowed: float) -> SeedStability:
    """Figures of `errors`, one per seed, against the tolerance `allowed`.

    Raises ConfigurationError for fewer than 20 seeds: the maximum of a handful understates the tail.
    """
    check_seeds(len(errors))
    least, most, first = min(errors), max(errors), max(errors[:FIRST])
    exact = most == 0
    return SeedStability(
        seeds=len(errors),
        least=least,
        most=most,
        spread=1.0 if exact else most / least if least else math.inf,
        exact=exact,
        most_of_first=first,
        tail_grows=most > 1.1 * first,
        headroom=math.inf if exact else allowed / most,
        errors=list(errors),
    )
