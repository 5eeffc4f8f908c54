"""What a run says as a whole: one outcome, one verdict, one banner, one exit code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from accuracy_core.errors import AssayError
from accuracy_core.outcome import Banner, ExitCode, Outcome, Verdict, banner, exit_code
from accuracy_core.prompts import conclusion_text as wording
from accuracy_core.prompts.consistency_conclusion import consistency_decision
from accuracy_core.prompts.module_conclusion import module_decision
from accuracy_core.prompts.preflight.report import PreflightReport
from accuracy_core.prompts.triage_tree import load_triage_tree
from accuracy_core.schemas import Culprit, ModuleValidationResult, PromptAnalysisStatus, Schema, TaskStatus

State = Literal["Completed", "AccuracyFailed", "ConfigurationFailed", "NotMeasured", "Crashed"]

_SUSPECT = "suspect: a guard fired, although the documented rule passes"
NO_CULPRIT = "score below threshold, no numerical culprit"


class Conclusion(Schema):
    """The decision over all stages. `verdict` is None unless numerics were judged in full."""

    outcome: Outcome
    verdict: Verdict | None = None
    banner: Banner
    headline: str
    notes: list[str] = Field(default_factory=list)
    fix: str = ""
    log_tail: str = ""
    culprit: Culprit | None = None
    suspects: list[str] = Field(default_factory=list)
    next_step: str = ""
    next_command: str = ""
    score_passed: bool | None = None
    numerics_verdict: Verdict | None = None
    curated: bool = False
    state: State
    exit_code: int


def conclude(
    task_status: TaskStatus | None,
    analysis: PromptAnalysisStatus | None,
    *,
    error: BaseException | None = None,
    skipped: Sequence[str] = (),
    preflight: PreflightReport | None = None,
    modules: ModuleValidationResult | None = None,
) -> Conclusion:
    """Decide what a run says; warnings of its preflight stand beside it.

    `task_status` or `analysis` None means: that stage left no result. `error` is what ended the run early. `skipped`
    names stages that were left out on purpose. A proven numerical failure is never hidden by a later breakdown;
    everything else gives way to it, since a run that broke down has not said what it was asked. `modules` decides where
    nothing else was measured.
    """
    decided = _decided(task_status, analysis, error, skipped)
    if modules is not None:
        alone = task_status is None and analysis is None and error is None
        update = module_decision(modules, decided, alone=alone, missing=wording.left_out(skipped) if alone else [])
        decided = decided.model_copy(update=update)
    if preflight is None or not preflight.notes():
        return decided
    return decided.model_copy(update={"notes": [*decided.notes, *preflight.notes()]})


def _decided(
    task_status: TaskStatus | None,
    analysis: PromptAnalysisStatus | None,
    error: BaseException | None,
    skipped: Sequence[str],
) -> Conclusion:
    numerics = analysis.verdict if analysis is not None else None
    if numerics is not Verdict.FAIL:
        if error is not None:
            return _broken(task_status, analysis, *_describe(error))
        for stage in (task_status, analysis):
            if stage is not None and stage.outcome in (Outcome.CONFIGURATION, Outcome.INFRASTRUCTURE):
                return _broken(task_status, analysis, stage.outcome, _why(stage), "", getattr(stage, "log_tail", ""))
    return _measured(task_status, analysis, error, list(skipped))


def conclude_error(
    error: BaseException,
    *,
    task_status: TaskStatus | None = None,
    analysis: PromptAnalysisStatus | None = None,
    skipped: Sequence[str] = (),
) -> Conclusion:
    """What a run says that `error` ended early; whatever was measured before it is kept."""
    return conclude(task_status, analysis, error=error, skipped=skipped)


def _measured(
    task: TaskStatus | None, analysis: PromptAnalysisStatus | None, error: BaseException | None, skipped: list[str]
) -> Conclusion:
    score = task.passed if task is not None else None
    numerics = analysis.verdict if analysis is not None else None
    notes = wording.notes(task, analysis)
    if error is not None:
        notes.append(f"the run ended early: {_describe(error)[1]}")
    gaps = wording.gaps(task, analysis, skipped)
    open_questions = [f"not measured: {gap}" for gap in gaps]
    if numerics is Verdict.FAIL:
        assert analysis is not None
        if score is False and task is not None:
            notes.insert(0, f"score below threshold too ({wording.missed_thresholds(task)})")
        headline = wording.culprit_headline("numerics fail", analysis.culprit)
        failed = _numerics(Verdict.FAIL, task, analysis, notes + open_questions, headline)
        return failed.model_copy(update=consistency_decision(analysis, failed))
    if score is False:
        return _score_failed(task, analysis, notes + open_questions)
    if numerics is Verdict.SUSPECT:
        assert analysis is not None
        headline = wording.culprit_headline(_SUSPECT, analysis.culprit)
        return _numerics(Verdict.SUSPECT, task, analysis, notes + open_questions, headline)
    if gaps:
        return _not_measured(task, analysis, notes, gaps, passed=score is True or numerics is Verdict.PASS)
    assert analysis is not None
    return _numerics(Verdict.PASS, task, analysis, notes, wording.pass_headline(task, analysis))


def _numerics(
    verdict: Verdict, task: TaskStatus | None, analysis: PromptAnalysisStatus | None, notes: list[str], headline: str
) -> Conclusion:
    culprit = analysis.culprit if analysis is not None and verdict is not Verdict.PASS else None
    return Conclusion(
        outcome=Outcome.NUMERICS,
        verdict=verdict,
        banner=banner(Outcome.NUMERICS, verdict),
        headline=headline,
        notes=list(dict.fromkeys(notes)),
        culprit=culprit,
        suspects=list(culprit.suspects) if culprit else [],
        next_step=culprit.next_step if culprit else "",
        next_command=culprit.next_command if culprit else "",
        state="Completed" if verdict is Verdict.PASS else "AccuracyFailed",
        exit_code=exit_code(Outcome.NUMERICS, verdict),
        **_common(task, analysis),
    )


def _score_failed(task: TaskStatus | None, analysis: PromptAnalysisStatus | None, notes: list[str]) -> Conclusion:
    assert task is not None
    numerics = analysis.verdict if analysis is not None else None
    detail = wording.missed_thresholds(task)
    if numerics is Verdict.PASS:
        # Clean on every analysed prompt: the engine is not where to look next, so nothing there is blamed.
        clean = next(node for node in load_triage_tree().node if node.id == "pass")
        notes = notes + wording.paired_notes(task)
        base = _numerics(Verdict.FAIL, task, None, notes, f"{NO_CULPRIT} ({detail})")
        update = {"suspects": list(clean.suspects), "next_step": clean.next, **_common(task, analysis)}
        return base.model_copy(update=update)
    if numerics is Verdict.SUSPECT:
        headline = f"score below threshold ({detail}), and a guard fired on the numerics"
        return _numerics(Verdict.FAIL, task, analysis, notes, headline)
    return _numerics(Verdict.FAIL, task, analysis, notes, f"score below threshold ({detail}); numerics not measured")


def _not_measured(
    task: TaskStatus | None, analysis: PromptAnalysisStatus | None, notes: list[str], gaps: list[str], *, passed: bool
) -> Conclusion:
    # An error inside a stage that ran is not the same as a stage left out on purpose: it must not exit with 0.
    complete = passed and not wording.errors(analysis)
    missing = "not measured: " + "; ".join(gaps)
    return Conclusion(
        outcome=Outcome.NOT_MEASURED,
        banner=Banner.GREY,
        # a run that was meant to do a part of the work says first what it found; one that broke, what is missing
        headline=f"{wording.pass_headline(task, analysis)}; {missing}" if complete else missing,
        notes=notes + (["what was measured, passed"] if passed and not complete else []),
        state="Completed" if complete else "NotMeasured",
        exit_code=ExitCode.PASSED if complete else ExitCode.ERROR,
        **_common(task, analysis),
    )


def _broken(
    task: TaskStatus | None,
    analysis: PromptAnalysisStatus | None,
    outcome: Outcome,
    message: str,
    fix: str,
    log_tail: str,
) -> Conclusion:
    notes = wording.notes(task, analysis)
    if task is not None and task.passed is False:
        notes.insert(0, f"before that: score below threshold ({wording.missed_thresholds(task)})")
    prefix = {Outcome.CONFIGURATION: "wrong set-up", Outcome.INFRASTRUCTURE: "infrastructure"}.get(
        outcome, "not measured"
    )
    states: dict[Outcome, State] = {
        Outcome.CONFIGURATION: "ConfigurationFailed",
        Outcome.INFRASTRUCTURE: "Crashed",
    }
    return Conclusion(
        outcome=outcome,
        banner=Banner.GREY,
        headline=f"{prefix}: {message}",
        notes=notes,
        fix=fix,
        log_tail=log_tail,
        state=states.get(outcome, "NotMeasured"),
        exit_code=exit_code(outcome, None),
        **_common(task, analysis),
    )


def _common(task: TaskStatus | None, analysis: PromptAnalysisStatus | None) -> dict[str, object]:
    return {
        "score_passed": task.passed if task is not None else None,
        "numerics_verdict": analysis.verdict if analysis is not None else None,
        "curated": analysis.curated if analysis is not None else False,
    }


def _describe(error: BaseException) -> tuple[Outcome, str, str, str]:
    """Outcome, message, fix and log tail. Whatever was not raised on purpose counts as infrastructure."""
    if isinstance(error, AssayError):
        return error.outcome, error.message, error.fix, str(getattr(error, "log_tail", ""))
    if isinstance(error, KeyboardInterrupt):
        return Outcome.INFRASTRUCTURE, "interrupted", "", ""
    return Outcome.INFRASTRUCTURE, f"{type(error).__name__}: {error}", "", ""


def _why(stage: TaskStatus | PromptAnalysisStatus) -> str:
    if isinstance(stage, TaskStatus):
        return "; ".join(stage.warnings) or "the evaluation could not be used"
    texts = [f"{name}: {text}" for name, plugin in stage.plugins.items() for text in plugin.errors.values()]
    texts += [finding.evidence for finding in stage.findings if finding.outcome is stage.outcome]
    return "; ".join(dict.fromkeys(texts)) or "prompt analysis did not finish"
