"""A typed finding of preflight or triage."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from accuracy_core.outcome import Outcome
from accuracy_core.schemas.base import Schema

#: check of the findings that a report shows in its banner: the limits are those of another target
CALIBRATION = "calibration"


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Finding(Schema):
    check: str
    severity: Severity
    evidence: str
    fix: str = ""
    accepted: bool = Field(False, description="an error that the user said is meant so, and so only a warning")
    outcome: Outcome = Field(Outcome.CONFIGURATION, description="what kind of problem it is")
