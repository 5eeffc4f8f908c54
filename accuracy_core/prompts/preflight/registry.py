"""The checks, by name, and running them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from accuracy_core.errors import ConfigurationError
from accuracy_core.outcome import Outcome
from accuracy_core.prompts.preflight.facts import PreflightFacts
from accuracy_core.prompts.preflight.report import PreflightReport
from accuracy_core.schemas import Finding, Severity

#: what a check needs: files of the checkpoint, a loaded tokenizer, requests that were made, a running server
Needs = Literal["checkpoint", "tokenizer", "requests", "server"]
Run = Callable[[PreflightFacts], Iterable[Finding]]


@dataclass(frozen=True)
class PreflightCheck:
    """`run` yields nothing for a set-up that is fine."""

    name: str
    needs: Needs
    asks: str
    run: Run


PREFLIGHT_CHECKS: dict[str, PreflightCheck] = {}


def preflight_check(name: str, needs: Needs, asks: str) -> Callable[[Run], Run]:
    """Register the decorated function. `asks` is the question it answers, for people."""

    def register(run: Run) -> Run:
        if name in PREFLIGHT_CHECKS:
            raise ConfigurationError(f"two preflight checks are called {name!r}")
        PREFLIGHT_CHECKS[name] = PreflightCheck(name, needs, asks, run)
        return run

    return register


def run_preflight(facts: PreflightFacts, needs: Sequence[Needs] | None = None) -> PreflightReport:
    """All checks, or those of the given `needs`. One that fails is itself a finding, and the others go on."""
    chosen = [check for check in PREFLIGHT_CHECKS.values() if needs is None or check.needs in needs]
    findings: list[Finding] = []
    for check in chosen:
        try:
            findings += check.run(facts)
        except Exception as error:
            findings.append(unmeasured(check.name, f"the check itself failed: {type(error).__name__}: {error}"))
    return PreflightReport(findings=findings, checks=[check.name for check in chosen])


def wrong(check: str, evidence: str, fix: str) -> Finding:
    """The set-up is wrong; a run stops."""
    return Finding(check=check, severity=Severity.ERROR, evidence=evidence, fix=fix)


def doubtful(check: str, evidence: str, fix: str) -> Finding:
    """May be meant so; a run goes on and says it."""
    return Finding(check=check, severity=Severity.WARNING, evidence=evidence, fix=fix)


def remark(check: str, evidence: str, fix: str = "") -> Finding:
    return Finding(check=check, severity=Severity.INFO, evidence=evidence, fix=fix)


def unmeasured(check: str, reason: str) -> Finding:
    """Nothing is known: never the same as fine."""
    return Finding(check=check, severity=Severity.INFO, evidence=reason, outcome=Outcome.NOT_MEASURED)
