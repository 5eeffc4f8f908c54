"""Limits of the consistency checks: data, from the tolerances."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field, ValidationError

from accuracy_core.errors import ConfigurationError
from accuracy_core.numerics import default_tolerances
from accuracy_core.schemas import Part, Tolerances


class ConsistencyLimits(Part):
    """`extra.consistency` of the tolerances; where each number comes from is said there."""

    pooled: float = Field(gt=0, description="difference over the rows of all prompts, in dtype noise")
    prompt: float = Field(gt=0, description="the same over the rows of one prompt")
    row: float = Field(gt=0, description="difference of one row, in dtype noise")
    error_ratio: float = Field(gt=1, description="error against FP32 over the rows of a prompt, with over without")
    relative: dict[str, float] = Field(
        description="dtype -> relative difference of one row, where no dtype noise is to be had"
    )

    @classmethod
    def of(cls, tolerances: Tolerances | None = None) -> ConsistencyLimits:
        """From `tolerances`; a calibration without such limits leaves the defaults. Raises ConfigurationError."""
        default = default_tolerances().extra.get("consistency")
        own = tolerances.extra.get("consistency") if tolerances is not None else None
        values = {**(default if isinstance(default, Mapping) else {}), **(own if isinstance(own, Mapping) else {})}
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigurationError(
                f"limits of the consistency checks (extra.consistency) are not usable: {error}"
            ) from error
