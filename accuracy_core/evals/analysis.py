"""Level 1: scores against thresholds, and the samples that deviate."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accuracy_core.errors import ConfigurationError
from accuracy_core.evals.analysis_files import write_analysis
from accuracy_core.evals.analyzer import TaskAnalyzer, TaskResults
from accuracy_core.evals.comparison import Comparison, compare
from accuracy_core.evals.deviations import DeviatedPrompts, Deviations, find_deviations
from accuracy_core.evals.judging import judge
from accuracy_core.evals.prompt_records import PromptBuilder
from accuracy_core.evals.readers.normal_form import EvalResults
from accuracy_core.evals.verdict_table import TaskVerdicts, judged_metrics, verdicts
from accuracy_core.outcome import Outcome
from accuracy_core.schemas import DeviatedPrompt, ResultsSummary, RunDir, TaskStatus, ThresholdResult

#: non-inferiority margin in the score's units: the drop that a threshold run commonly tolerates
DEFAULT_MARGIN = 0.02


@dataclass(frozen=True)
class TaskAnalysis:
    """What task analysis found. `passed` is None when no threshold was given: nothing was judged.

    `deviated_prompts` reads each prompt when it is asked for, in the order in which prompts are taken for analysis;
    `model_errors` are the samples that the reference gets wrong too.
    """

    status: TaskStatus
    thresholds: dict[str, Any]
    deviated_prompts: Sequence[DeviatedPrompt]
    model_errors: Sequence[DeviatedPrompt]
    summary: ResultsSummary
    results: EvalResults

    @property
    def passed(self) -> bool | None:
        return self.status.passed

    @property
    def scores(self) -> dict[str, float]:
        """`task/metric,filter` -> value."""
        return {row.key: row.value for row in self.status.scores}

    @property
    def warnings(self) -> list[str]:
        return self.status.warnings

    @property
    def failed(self) -> list[ThresholdResult]:
        return [item for item in self.status.thresholds if not item.passed]


def run_task_analysis(
    analyzer: TaskAnalyzer,
    input_task_results: TaskResults,
    thresholds: Mapping[str, Any],
    output_dir: str | os.PathLike[str] | RunDir,
    reference_results: TaskResults | None = None,
    *,
    margin: float | None = DEFAULT_MARGIN,
) -> TaskAnalysis:
    """Compare scores with `thresholds` and extract the deviated prompts; writes `task_analysis/` under `output_dir`.

    `input_task_results`: an output directory, a results file, or a results dict. A threshold's key is `metric,filter`
    or `task/metric,filter`; its value the worst number that passes, `{"mean": m, "std": s, "n_sigma": 2}` or
    `{"min_of_reference": 0.98}`. With `reference_results` (the same tasks, a trusted run) samples are compared
    document by document, and `margin` (score units) is what counts as non-inferior; without, a sample deviates when a
    thresholded metric is not fully right.

    Raises ConfigurationError for unusable results or thresholds and for a key that fits several scores; a key that fits
    none fails instead, with the names that exist.
    """
    if not isinstance(thresholds, Mapping):
        raise ConfigurationError(f"thresholds must be a mapping, got {type(thresholds).__name__}")
    if margin is not None and not margin > 0:
        raise ConfigurationError(f"margin must be positive, got {margin}")
    directory = RunDir.at(output_dir).create()
    results = analyzer.load(input_task_results)
    reference = None if reference_results is None else analyzer.load(reference_results)
    judged, rows = judge(thresholds, results.sheet, reference.sheet if reference else None)
    metrics = judged_metrics(results, rows) if rows or not thresholds else []
    found = verdicts(results, metrics)
    comparison = None if reference is None else compare(results, reference, metrics, margin)
    deviations = find_deviations(found, comparison)
    builder = PromptBuilder(found, comparison, results.requests)
    status = _status(analyzer, results, reference, thresholds, judged, found, comparison, deviations)
    summary = write_analysis(directory, status, found, deviations, builder, comparison is not None)
    return TaskAnalysis(
        status=status,
        thresholds=dict(thresholds),
        deviated_prompts=DeviatedPrompts(deviations.deviating, builder),
        model_errors=DeviatedPrompts(deviations.model_errors, builder),
        summary=summary,
        results=results,
    )


def _status(
    analyzer: TaskAnalyzer,
    results: EvalResults,
    reference: EvalResults | None,
    thresholds: Mapping[str, Any],
    judged: list[ThresholdResult],
    found: dict[str, TaskVerdicts],
    comparison: Comparison | None,
    deviations: Deviations,
) -> TaskStatus:
    warnings = list(results.warnings)
    if comparison:
        warnings += comparison.warnings
    if reference:
        warnings += [f"reference: {text}" for text in reference.warnings]
    if not thresholds:
        warnings.append("no threshold was given: the scores are not judged")
    if results.sheet.rows == []:
        warnings.append("the results hold no score")
    return TaskStatus(
        analyzer=analyzer.name,
        outcome=Outcome.NUMERICS if judged else Outcome.NOT_MEASURED,
        passed=all(item.passed for item in judged) if judged else None,
        scores=analyzer.scores(results),
        thresholds=judged,
        paired=comparison.tests if comparison else [],
        warnings=warnings,
        n_samples=sum(verdict.table.frame["doc_id"].nunique() for verdict in found.values()),
        n_deviated=len(deviations.deviating),
        n_model_errors=len(deviations.model_errors),
        n_records={task: table.n_records() for task, table in results.samples.items()},
        model=results.model,
        results_files=[path.name for path in results.files],
        settings=results.settings,
    )
