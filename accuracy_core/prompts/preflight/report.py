"""The findings of a preflight as a document, and as the error that ends a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from accuracy_core.errors import ConfigurationError
from accuracy_core.outcome import Outcome
from accuracy_core.schemas import Finding, Part, Schema, Severity

#: what a check needs: files of the checkpoint, a loaded tokenizer, requests that were made, a running server, what the
#: engine said when it loaded
Needs = Literal["checkpoint", "tokenizer", "requests", "server", "engine"]
#: worst first
Standing = Literal["wrong", "accepted", "doubtful", "not measured", "fine"]
_SEPARATOR = "; "


class CheckResult(Part):
    """One check and what it found; nothing is fine."""

    check: str
    asks: str = Field("", description="the question that it answers")
    needs: Needs
    findings: list[Finding] = Field(default_factory=list)

    @property
    def errors(self) -> list[Finding]:
        """Findings that stop a run."""
        return [item for item in self.findings if _is_error(item)]

    @property
    def standing(self) -> Standing:
        """What the check says as a whole: the worst of its findings."""
        if self.errors:
            return "wrong"
        if any(item.accepted for item in self.findings):
            return "accepted"
        if any(item.severity is not Severity.INFO for item in self.findings):
            return "doubtful"
        if any(item.outcome is Outcome.NOT_MEASURED for item in self.findings):
            return "not measured"
        return "fine"


class PreflightReport(Schema):
    """`preflight.json`. Errors are wrong set-ups: numerics measured on top of them would say nothing."""

    results: list[CheckResult] = Field(default_factory=list, description="checks that were made, in order")

    @property
    def findings(self) -> list[Finding]:
        return [finding for result in self.results for finding in result.findings]

    @property
    def checks(self) -> list[str]:
        return [result.check for result in self.results]

    @property
    def errors(self) -> list[Finding]:
        """Findings that stop a run."""
        return [item for item in self.findings if _is_error(item)]

    @property
    def not_measured(self) -> list[Finding]:
        return [item for item in self.findings if item.outcome is Outcome.NOT_MEASURED]

    def accepting(self, checks: Sequence[str]) -> PreflightReport:
        """A copy in which errors of `checks` are warnings, marked as accepted."""
        return PreflightReport(
            results=[_accepted(result) if result.check in checks else result for result in self.results]
        )

    def followed_by(self, later: PreflightReport) -> PreflightReport:
        """Both; a check that was made again says what it said the second time."""
        again = set(later.checks)
        return PreflightReport(results=[item for item in self.results if item.check not in again] + later.results)

    def notes(self) -> list[str]:
        """A line per warning, for the conclusion of a run that goes on."""
        return [
            f"preflight, {result.check}{' (accepted)' if finding.accepted else ''}: {finding.evidence}"
            for result in self.results
            for finding in result.findings
            if finding.severity is Severity.WARNING
        ]

    def error(self) -> ConfigurationError | None:
        """What ends the run: every error with its evidence, and what to do about each. None without errors."""
        found = [(result.check, finding) for result in self.results for finding in result.errors]
        if not found:
            return None
        checks = list(dict.fromkeys(check for check, _ in found))
        meant = f"if it is meant so: {' '.join(f'--accept {check}' for check in checks)}"
        if len(found) == 1:
            check, finding = found[0]
            return ConfigurationError(
                f"preflight, {check}: {finding.evidence}", fix=_SEPARATOR.join([finding.fix, meant])
            )
        evidence = [f"({number}) {check}: {finding.evidence}" for number, (check, finding) in enumerate(found, 1)]
        fixes = [f"({number}) {finding.fix}" for number, (_, finding) in enumerate(found, 1)]
        return ConfigurationError(
            f"preflight, {len(found)} errors: {_SEPARATOR.join(evidence)}", fix=_SEPARATOR.join([*fixes, meant])
        )


def _is_error(finding: Finding) -> bool:
    return finding.severity is Severity.ERROR and finding.outcome is Outcome.CONFIGURATION


def _accepted(result: CheckResult) -> CheckResult:
    findings = [
        item.model_copy(update={"severity": Severity.WARNING, "accepted": True}) if _is_error(item) else item
        for item in result.findings
    ]
    return result.model_copy(update={"findings": findings})
