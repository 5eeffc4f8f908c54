"""What a stage did: inputs' hash, duration, versions."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from accuracy_core.outcome import Outcome
from accuracy_core.schemas.base import Schema


class StageRecord(Schema):
    """`stages/<stage>.json` in the run directory."""

    stage: str
    inputs_hash: str
    started: datetime
    duration_s: float = Field(ge=0)
    status: Literal["done", "failed", "skipped", "cached"] = "done"
    outcome: Outcome | None = None
    message: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    outputs: list[str] = Field(default_factory=list, description="paths relative to the run directory")
