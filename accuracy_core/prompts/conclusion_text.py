"""Headlines and notes of a conclusion."""

from __future__ import annotations

import math
from collections.abc import Sequence

from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.prompts.consistency_conclusion import consistency_gaps, is_consistency_alone
from accuracy_core.prompts.triage import phase_text
from accuracy_core.schemas import Culprit, Phase, PromptAnalysisStatus, TaskStatus

_SCORE, _NUMERICS = "the score", "the numerics of the logits"
#: what a stage is there to say
_MEASURES = {"evaluate": _SCORE, "task_analysis": _SCORE, "prompt_analysis": _NUMERICS}


def errors(analysis: PromptAnalysisStatus | None) -> list[str]:
    """Errors of plugins and prompts, one line each."""
    if analysis is None:
        return []
    return [
        f"{name}, {'plugin' if key == 'plugin' else f'prompt {key}'}: {text}"
        for name, plugin in analysis.plugins.items()
        for key, text in plugin.errors.items()
    ]


def gaps(task: TaskStatus | None, analysis: PromptAnalysisStatus | None, skipped: Sequence[str]) -> list[str]:
    """What has no answer: first what stages left out on purpose would have said, then what was asked.

    A run without any threshold was not asked to judge scores.
    """
    found = left_out(skipped)
    named = " ".join(skipped)
    if task is None and "task_analysis" not in named and "evaluate" not in named:
        found.append(f"{_SCORE} (no task analysis)")
    elif task is not None and task.passed is None and (task.thresholds or task.outcome is Outcome.NOT_MEASURED):
        found.append("; ".join(task.warnings) or "the scores could not be judged")
    if analysis is None and "prompt_analysis" not in named:
        found.append(f"{_NUMERICS} (no prompt analysis)")
    elif analysis is not None and (analysis.verdict is None or analysis.outcome is Outcome.NOT_MEASURED):
        found.append(
            "numerics: " + ("; ".join([*errors(analysis), *consistency_gaps(analysis)]) or "nothing was compared")
        )
    elif analysis is not None:
        found += errors(analysis)
        found += [
            _words(name)
            for name, plugin in analysis.plugins.items()
            if plugin.verdict is None and not plugin.errors and not plugin.not_measured
        ]
        found += consistency_gaps(analysis)
        if is_consistency_alone(analysis) and not errors(analysis):
            found.append(f"{_NUMERICS} against a reference (plugin logit_validation left out)")
    return found


def left_out(skipped: Sequence[str]) -> list[str]:
    """What nobody measured because the stages that do were left out, with their names."""
    by_what: dict[str, list[str]] = {}
    for name in skipped:
        by_what.setdefault(_MEASURES.get(name, _words(name)), []).append(name)
    return [
        f"{what} ({'stage' if len(names) == 1 else 'stages'} {' and '.join(names)} left out)"
        for what, names in by_what.items()
    ]


def notes(task: TaskStatus | None, analysis: PromptAnalysisStatus | None) -> list[str]:
    """What belongs beside the headline: curated prompts, rescue routes, findings, warnings."""
    found: list[str] = []
    if analysis is not None:
        if analysis.curated:
            found.append(
                "the curated prompts were analysed"
                if task is None
                else "no sample deviated: curated prompts were analysed instead"
            )
        for plugin in analysis.plugins.values():
            judging = [route for route in plugin.routes if not route.informative]
            failed = [route.route for route in judging if route.passed is False]
            passed = [route.route for route in judging if route.passed]
            if plugin.verdict is Verdict.PASS and failed and passed:
                found.append(
                    f"{_words(plugin.plugin)}: informative deviations, {_words(*failed)} not met, "
                    f"passed through {_words(*passed)}; no guard fired"
                )
        found += [finding.evidence for finding in analysis.findings]
    if task is not None:
        if task.passed is None and not task.thresholds and not task.warnings:
            found.append("no threshold was given: scores are reported, not judged")
        found += task.warnings
    return list(dict.fromkeys(found))


def paired_notes(task: TaskStatus) -> list[str]:
    """The paired tests against the reference, or that there are none."""
    found = []
    for test in task.paired:
        found.append(
            f"paired with the reference, {test.key}: {test.n_worse} worse, {test.n_better} better of {test.n}, "
            f"difference {test.difference:+.3f} (McNemar p = {test.mcnemar_p:.3g})"
        )
    return found or ["no reference results: without a paired test nobody knows what the reference scores"]


def missed_thresholds(task: TaskStatus) -> str:
    """Thresholds that were not met, with score and bound."""
    missed = []
    for result in task.thresholds:
        if not result.passed:
            if not result.key:
                missed.append(f"{result.given_key}: no such score in the results")
                continue
            numbers = "" if math.isnan(result.value) else f" {result.value:.4g}, bound {result.bound:.4g}"
            missed.append(f"{result.key or result.given_key}{numbers}")
    return "; ".join(missed) or "thresholds not met"


def culprit_headline(text: str, culprit: Culprit | None) -> str:
    """`text`, and where the fault sits as far as it is known."""
    if culprit is None:
        return text
    parts = [] if culprit.phase is Phase.NONE else [f"phase {phase_text(culprit.phase)}"]
    for name in ("module", "layer", "head", "position"):
        value = getattr(culprit, name)
        if value is not None:
            parts.append(f"{name} {value}")
    if culprit.module is not None and culprit.confirmed is not None:
        parts.append("confirmed by tensor replacement" if culprit.confirmed else "not confirmed by tensor replacement")
    return f"{text}: {', '.join(parts)}" if parts else text


def pass_headline(task: TaskStatus | None, analysis: PromptAnalysisStatus | None) -> str:
    """What passed: the score, the numerics, or both."""
    found = ["score met"] if task is not None and task.passed else []
    if analysis is not None and analysis.verdict is Verdict.PASS:
        what = "curated prompts" if analysis.curated else "analysed prompts"
        passed = "the engine agrees with itself" if is_consistency_alone(analysis) else "numerics pass"
        found.append(f"{passed} on all {analysis.n_prompts} {what}")
    return ", ".join(found)


def _words(*names: str) -> str:
    return ", ".join(name.replace("_", " ") for name in names)
