"""The bounds in `limits.toml`."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from pydantic import Field

from accuracy_core.schemas.base import Part


class PreflightLimits(Part):
    truncated_wrong: float = Field(gt=0, le=1)
    truncated_doubtful: float = Field(gt=0, le=1)
    unmatched_doubtful: float = Field(gt=0, le=1)
    largest_weight: float = Field(gt=0)
    right_elsewhere: float = Field(gt=0, le=1)
    sampled_documents: int = Field(ge=1)
    least_requests: int = Field(ge=1, description="below this many requests a share says nothing")
    provenance: dict[str, str]


@cache
def limits() -> PreflightLimits:
    return PreflightLimits.model_validate(tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")))
