"""The findings of a preflight as a document."""

from __future__ import annotations

from pydantic import Field

from accuracy_core.outcome import Outcome
from accuracy_core.schemas import Finding, Schema, Severity


class PreflightReport(Schema):
    """`preflight.json`. Errors are wrong set-ups: numerics measured on top of them would say nothing."""

    findings: list[Finding] = Field(default_factory=list)
    checks: list[str] = Field(default_factory=list, description="checks that were made, in order")

    @property
    def errors(self) -> list[Finding]:
        """Findings that stop a run."""
        return [
            item for item in self.findings if item.severity is Severity.ERROR and item.outcome is Outcome.CONFIGURATION
        ]

    @property
    def not_measured(self) -> list[Finding]:
        return [item for item in self.findings if item.outcome is Outcome.NOT_MEASURED]
