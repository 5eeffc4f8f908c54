"""The bounds in `limits.toml`."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from pydantic import Field

from accuracy_core.schemas.base import Part


class ModuleLimits(Part):
    bc: float = Field(gt=0, le=1)
    sigma_ratio: float = Field(gt=0)
    linf_ratio: float = Field(gt=0)
    l2_ratio: float = Field(gt=0)
    bc_min_samples: int = Field(ge=1)
    lean: float = Field(gt=0)
    provenance: dict[str, str]


@cache
def limits() -> ModuleLimits:
    return ModuleLimits.model_validate(tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")))
