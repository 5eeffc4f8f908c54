"""Was the fault found, and where? From what a prompt analysis wrote, never from knowing what was injected."""

from __future__ import annotations

from collections.abc import Sequence

from accuracy_core.faults import FAULTS, resolve_fault
from accuracy_core.faults.fault import Config, Fault, FaultEngine, ResolvedFault
from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.schemas import Culprit, FaultSpec, Finding, Phase, PromptAnalysisStatus, Severity
from accuracy_core.selftest.document import CaseResult
from accuracy_core.selftest.plan import Case


def judge(case: Case, status: PromptAnalysisStatus, config: Config, engine: FaultEngine) -> CaseResult:
    """The result of one run, `status` being its analysis."""
    findings = configuration_findings(status.findings)
    by = [name for name, plugin in status.plugins.items() if plugin.verdict not in (None, Verdict.PASS)]
    by += [finding.check for finding in findings]
    missing = {
        name: "; ".join(plugin.errors.values()) or "nothing was compared"
        for name, plugin in status.plugins.items()
        if plugin.verdict is None
    }
    culprit = status.culprit
    found = CaseResult(
        architecture=case.architecture,
        fault=case.fault,
        seed=case.seed,
        detected=bool(by),
        by=by,
        not_measured=missing,
        verdict=status.verdict,
        phase=culprit.phase if culprit else status.phase,
        module=culprit.module if culprit else None,
        confirmed=culprit.confirmed if culprit else None,
        evidence=[*(finding.evidence for finding in findings), *(culprit.evidence if culprit else [])],
    )
    if case.fault is None:
        gaps = [f"{name} has no verdict: {reason}" for name, reason in missing.items()]
        return found.model_copy(update={"error": "; ".join(gaps)})  # silence of what did not run is no proof
    fault = resolve_fault(FaultSpec(name=case.fault, strength=case.strength), config=config, engine=engine)
    known = FAULTS[case.fault]
    places = known.places(fault, config)
    return found.model_copy(
        update={
            "layer": fault.layer,
            "strength": fault.strength,
            "level": known.level,
            "expected_phase": known.expected_phase,
            "expected_modules": places,
            "phase_right": phase_is_right(known, status, culprit, findings),
            "module_right": module_is_right(known, fault, places, culprit, findings),
        }
    )


def configuration_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Findings that say that something is set up wrong; notes and what was not measured are none."""
    return [
        finding
        for finding in findings
        if finding.outcome is Outcome.CONFIGURATION and finding.severity is Severity.ERROR
    ]


def phase_is_right(
    fault: Fault, status: PromptAnalysisStatus, culprit: Culprit | None, findings: Sequence[Finding]
) -> bool:
    """Prefill comes first: a fault that shows in both phases is placed where it begins, so either word is right.

    A fault of the configuration has no phase: naming the configuration is right.
    """
    if fault.level == "config":
        return bool(findings)
    found = culprit.phase if culprit is not None and culprit.phase is not Phase.NONE else status.phase
    if fault.level == "logits" and status.phase is not Phase.NONE:
        found = status.phase  # the rows are the module's own output
    if fault.expected_phase is Phase.DECODE:
        return found is Phase.DECODE
    return found in (Phase.PREFILL, Phase.BOTH)


def module_is_right(
    fault: Fault, resolved: ResolvedFault, places: Sequence[str], culprit: Culprit | None, findings: Sequence[Finding]
) -> bool:
    if fault.level == "config":
        return bool(findings)
    if culprit is None:
        return False
    if culprit.module in places:
        return True
    # where only the cache can be looked at, it is named together with its layer
    cache = fault.level == "kv" and (culprit.module or "").startswith("KV cache")
    return cache and (resolved.layer is None or culprit.layer == resolved.layer)
