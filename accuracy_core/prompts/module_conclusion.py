"""What a module validation adds to the decision over a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accuracy_core.outcome import Banner, ExitCode, Outcome, Verdict, banner, exit_code
from accuracy_core.schemas import ModuleCheck, ModuleValidationResult

#: modules that a headline names
_NAMED = 3


def module_decision(
    modules: ModuleValidationResult, decided: Any, *, alone: bool, missing: Sequence[str] = ()
) -> dict[str, Any]:
    """Fields of the Conclusion `decided` that change because of `modules`.

    `alone`: nothing else was measured and nothing ended the run early, so the modules decide; `missing` names what was
    left out on purpose then, for a pass says nothing of it. A module proven wrong fails the run whatever else it says,
    except that a failure of the logits keeps its own headline. A module that was asked for and not measured makes a
    pass incomplete.
    """
    notes = [*decided.notes, *module_notes(modules)]
    if modules.verdict is Verdict.FAIL:
        before = [] if alone else [f"besides: {decided.headline}"]
        if decided.verdict is Verdict.FAIL and decided.numerics_verdict is Verdict.FAIL:
            return {"notes": [*notes, _failed(modules)]}
        return {**_judged(Verdict.FAIL, _failed(modules)), "notes": [*before, *notes]}
    if modules.unmeasured and (alone or decided.verdict is Verdict.PASS):
        return {**_incomplete(modules), "notes": notes}
    if alone and modules.verdict is Verdict.PASS:
        headline = "; not measured: ".join(filter(None, [_passed(modules), "; ".join(missing)]))
        return {**_judged(Verdict.PASS, headline), "notes": notes}
    if alone:
        return {**_incomplete(modules), "notes": notes}
    return {"notes": notes}


def module_notes(modules: ModuleValidationResult) -> list[str]:
    """Named findings, one per kind of module, and what was not measured."""
    found: dict[str, ModuleCheck] = {}
    for check in modules.found:
        found.setdefault(check.kind, check)
    return [
        *(f"{kind}: {check.finding} ({check.name})" for kind, check in found.items()),
        *(f"not measured: {check.name}: {check.reason}" for check in modules.unmeasured),
    ]


def _failed(modules: ModuleValidationResult) -> str:
    names = [check.name for check in modules.failed]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"module validation fails: {'; '.join(names[:_NAMED])}{more} ({modules.failed[0].reason})"


def _passed(modules: ModuleValidationResult) -> str:
    kinds = list(dict.fromkeys(check.kind for check in modules.checks))
    return f"all {len(modules.checks)} module checks pass: {', '.join(kinds)}"


def _judged(verdict: Verdict, headline: str) -> dict[str, Any]:
    return {
        "outcome": Outcome.NUMERICS,
        "verdict": verdict,
        "banner": banner(Outcome.NUMERICS, verdict),
        "headline": headline,
        "state": "Completed" if verdict is Verdict.PASS else "AccuracyFailed",
        "exit_code": exit_code(Outcome.NUMERICS, verdict),
    }


def _incomplete(modules: ModuleValidationResult) -> dict[str, Any]:
    missing = [f"{check.name} ({check.reason})" for check in modules.unmeasured]
    return {
        "outcome": Outcome.NOT_MEASURED,
        "verdict": None,
        "banner": Banner.GREY,
        "headline": f"not measured: {'; '.join(missing[:_NAMED]) or 'no module was compared'}",
        "state": "NotMeasured",
        "exit_code": int(ExitCode.ERROR),
    }
