"""The checks, by name, and running them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from accuracy_core.errors import ConfigurationError
from accuracy_core.outcome import Outcome
from accuracy_core.prompts.preflight.facts import PreflightFacts
from accuracy_core.prompts.preflight.report import CheckResult, Needs, PreflightReport
from accuracy_core.schemas import Finding, Severity

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
    return PreflightReport(
        results=[
            CheckResult(check=check.name, asks=check.asks, needs=check.needs, findings=_findings(check, facts))
            for check in chosen
        ]
    )


def _findings(check: PreflightCheck, facts: PreflightFacts) -> list[Finding]:
    try:
        return list(check.run(facts))
    except Exception as error:
        return [unmeasured(check.name, f"the check itself failed: {type(error).__name__}: {error}")]


def require_known(names: Iterable[str]) -> None:
    """Raises ConfigurationError for a name that no check has, with near ones."""
    for name in names:
        if name not in PREFLIGHT_CHECKS:
            near = difflib.get_close_matches(name, PREFLIGHT_CHECKS, n=3, cutoff=0.4)
            known = f"did you mean {' or '.join(near)}?" if near else f"checks: {', '.join(PREFLIGHT_CHECKS)}"
            raise ConfigurationError(f"no preflight check is called {name!r}", fix=known)


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
