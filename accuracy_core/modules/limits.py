"""The bounds in `limits.toml`, and what a calibration puts in their place."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pydantic import Field, ValidationError

from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas import Tolerances
from accuracy_core.schemas.base import Part


class ModuleLimits(Part):
    bc: float = Field(gt=0, le=1)
    sigma_ratio: float = Field(gt=0)
    linf_ratio: float = Field(gt=0)
    l2_ratio: float = Field(gt=0)
    bc_min_samples: int = Field(ge=1)
    lean: float = Field(gt=0)
    give_back_ulps: float = Field(gt=0)
    provenance: dict[str, str]

    @classmethod
    def of(cls, tolerances: Tolerances | None = None) -> ModuleLimits:
        """`limits.toml`, under `extra.modules` of the tolerances. Raises ConfigurationError for unknown names."""
        own = tolerances.extra.get("modules") if tolerances is not None else None
        try:
            return cls.model_validate({**limits().model_dump(), **(own if isinstance(own, Mapping) else {})})
        except ValidationError as error:
            raise ConfigurationError(f"limits of the modules (extra.modules) are not usable: {error}") from error


@cache
def limits() -> ModuleLimits:
    return ModuleLimits.model_validate(tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")))
