"""The target's samples beside the reference's: which documents are worse, which are wrong in both, and the paired
tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from accuracy_core.evals.readers.document_hashes import document_hashes
from accuracy_core.evals.readers.normal_form import EvalResults
from accuracy_core.evals.readers.sample_table import SampleTable
from accuracy_core.evals.statistics.detectable_drop import detectable_drop_paired
from accuracy_core.evals.statistics.mcnemar import mcnemar_exact
from accuracy_core.evals.statistics.non_inferiority import is_non_inferior
from accuracy_core.evals.statistics.paired_interval import paired_difference
from accuracy_core.evals.verdict_table import JudgedMetric
from accuracy_core.schemas import PairedTest

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class TaskComparison:
    """Per row of the target: `reference_row` (-1: no such document there) and `worse_by` (NaN: not compared)."""

    reference: SampleTable
    reference_row: np.ndarray
    worse_by: np.ndarray


@dataclass
class Comparison:
    tasks: dict[str, TaskComparison] = field(default_factory=dict)
    tests: list[PairedTest] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def compare(
    target: EvalResults, reference: EvalResults, metrics: Sequence[JudgedMetric], margin: float | None
) -> Comparison:
    """Join on task, doc_id and filter; documents whose hashes differ are left out and named.

    One paired test per metric; with a `margin` (in the score's units) each says whether the target is non-inferior.
    """
    comparison = Comparison()
    for task, table in target.samples.items():
        other = reference.samples.get(task)
        if other is None:
            comparison.warnings.append(f"the reference has no samples of {task}: its samples are judged without one")
            continue
        joined = TaskComparison(
            other, _join(task, table, other, comparison.warnings), np.full(len(table.frame), np.nan)
        )
        comparison.tasks[task] = joined
        for item in metrics:
            if item.task == task and item.metric in table.metrics and item.metric in other.metrics:
                test = _paired(table, joined, item, margin)
                if test is not None:
                    comparison.tests.append(test)
    return comparison


def _join(task: str, table: SampleTable, other: SampleTable, warnings: list[str]) -> np.ndarray:
    """Row of the reference for every row of the target. A document logged twice is matched in order of appearance."""
    keys = ["doc_id", "filter", "again"]
    left, right = _keyed(table), _keyed(other)
    merged = left.merge(right, on=keys, how="left", suffixes=("", "_reference"))
    found = merged["row_reference"].fillna(-1).to_numpy(np.int64)
    known = (merged["doc_hash"] != 0) & (merged["doc_hash_reference"].fillna(0) != 0)
    differs = (known & (merged["doc_hash"] != merged["doc_hash_reference"])).to_numpy() & (found >= 0)
    if differs.any():
        docs = sorted({int(doc) for doc in merged.loc[differs, "doc_id"]})
        warnings.append(
            f"{len(docs)} documents of {task} are not the same in the reference (first: doc_id {docs[0]}): left out"
        )
        found[differs] = -1
    alone = int((found < 0).sum() - differs.sum())
    if alone:
        warnings.append(f"{alone} of {len(found)} samples of {task} have no counterpart in the reference")
    return found


def _keyed(table: SampleTable) -> pd.DataFrame:
    frame = table.frame[["doc_id", "filter"]].copy()
    frame["doc_hash"] = document_hashes(table)
    frame["filter"] = frame["filter"].astype(str)
    frame["again"] = frame.groupby(["doc_id", "filter"]).cumcount()
    frame["row"] = np.arange(len(frame))
    return frame


def _paired(table: SampleTable, joined: TaskComparison, item: JudgedMetric, margin: float | None) -> PairedTest | None:
    rows, values, judged = table.values(item.metric, item.filter)
    partner = joined.reference_row[rows]
    theirs = joined.reference.frame[f"value:{item.metric}"].to_numpy()
    their_judged = joined.reference.frame[f"judged:{item.metric}"].to_numpy()
    both = judged & (partner >= 0)
    both[both] &= their_judged[partner[both]]
    rows, values, base = rows[both], values[both], theirs[partner[both]]
    if len(rows) == 0:
        return None
    sign = 1.0 if item.higher_is_better else -1.0
    gain = sign * (_finite(values, sign) - _finite(base, sign))
    joined.worse_by[rows] = np.fmax(joined.worse_by[rows], -gain)
    finite = np.isfinite(values) & np.isfinite(base)
    worse, better = int((gain < 0).sum()), int((gain > 0).sum())
    key = f"{item.task}/{item.metric},{item.filter}"
    if not finite.any():
        return None
    docs = table.frame["doc_id"].to_numpy()[rows[finite]]
    paired = paired_difference(gain[finite], docs)
    low, high = paired.interval()
    drop = detectable_drop_paired(len(rows), (worse + better) / len(rows))
    dropped = int((~finite).sum())
    return PairedTest(
        key=key,
        n=len(rows),
        n_worse=worse,
        n_better=better,
        difference=paired.difference,
        ci_low=low,
        ci_high=high,
        mcnemar_p=mcnemar_exact(worse, better),
        margin=float("nan") if margin is None else margin,
        non_inferior=None if margin is None else is_non_inferior(paired, margin),
        detail=f"interval: {paired.method}; smallest detectable drop at this disagreement: {drop:.4f}"
        + (f"; {dropped} samples without a finite value count as flips only" if dropped else ""),
    )


def _finite(values: np.ndarray, sign: float) -> np.ndarray:
    """NaN and infinities as the worst value there is, large but finite so that differences stay numbers."""
    return np.where(np.isfinite(values), values, -sign * 1e300)
