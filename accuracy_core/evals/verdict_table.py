"""Every sample's own verdict, from the metrics that thresholds name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from accuracy_core.evals.classification import badness, is_right, right_value
from accuracy_core.evals.readers.normal_form import EvalResults
from accuracy_core.evals.readers.sample_table import SampleTable
from accuracy_core.schemas import ScoreRow


@dataclass(frozen=True)
class JudgedMetric:
    """A metric that decides over samples of one task, under one filter."""

    task: str
    metric: str
    filter: str
    higher_is_better: bool
    score: float


@dataclass
class TaskVerdicts:
    """Per row of a sample table: `right` by the deciding metrics (1, 0, or -1 for not judged), `badness` (0 for right).

    `own` says the same by every metric that is judged anywhere in the task under any filter: for display, a filter
    without a threshold has a verdict too.
    """

    table: SampleTable
    metrics: list[JudgedMetric]
    right: np.ndarray
    badness: np.ndarray
    own: np.ndarray


def judged_metrics(results: EvalResults, rows: Sequence[ScoreRow]) -> list[JudgedMetric]:
    """Metrics that decide: those of the thresholded `rows` (a group means its leaf tasks); all of them without any."""
    chosen = rows or [row for row in results.sheet.rows if not row.is_group]
    scores = {row.key: row for row in results.sheet.rows}
    found: dict[tuple[str, str, str], JudgedMetric] = {}
    for row in chosen:
        for task in results.sheet.leaves(row.task):
            own = scores.get(f"{task}/{row.metric},{row.filter}")
            score = own.value if own is not None else float("nan")
            key = (task, row.metric, row.filter)
            found.setdefault(key, JudgedMetric(*key, row.higher_is_better, score))
    return list(found.values())


def verdicts(results: EvalResults, metrics: Sequence[JudgedMetric]) -> dict[str, TaskVerdicts]:
    """Verdicts per task; a sample is right when every deciding metric under its filter says so."""
    everything = judged_metrics(results, [])
    by_task: dict[str, TaskVerdicts] = {}
    for task, table in results.samples.items():
        n = len(table.frame)
        deciding = [item for item in metrics if item.task == task and item.metric in table.metrics]
        names = {item.metric for item in deciding} or set(table.metrics)
        shown = [item for item in everything if item.task == task and item.metric in names & set(table.metrics)]
        verdict = TaskVerdicts(table, deciding, np.full(n, -1, np.int8), np.zeros(n), np.full(n, -1, np.int8))
        for item in deciding:
            rows, right, bad = _judge(table, item)
            verdict.right[rows] = np.where(verdict.right[rows] == 0, 0, right)
            verdict.badness[rows] = np.maximum(verdict.badness[rows], bad)
        for item in shown:
            rows, right, _ = _judge(table, item)
            verdict.own[rows] = np.where(verdict.own[rows] == 0, 0, right)
        by_task[task] = verdict
    return by_task


def _judge(table: SampleTable, item: JudgedMetric) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(rows, right as 0 or 1, badness) of the rows that the metric judges."""
    _, everywhere, judged_anywhere = table.values(item.metric)
    best = right_value(everywhere[judged_anywhere], item.score, item.higher_is_better)
    rows, values, judged = table.values(item.metric, item.filter)
    rows, values = rows[judged], values[judged]
    right = is_right(values, best, item.higher_is_better).astype(np.int8)
    return rows, right, badness(values, best, item.higher_is_better)
