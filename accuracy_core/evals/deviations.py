"""From verdicts to deviated prompts: who deviates, in which order, and each one's request as it was sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from accuracy_core.evals.comparison import Comparison
from accuracy_core.evals.prompt_records import PromptBuilder
from accuracy_core.evals.turn_order import coded_turn_order
from accuracy_core.evals.verdict_table import TaskVerdicts
from accuracy_core.schemas import DeviatedPrompt

_HUGE = 1e299  # a gap to a value that is no finite number


@dataclass(frozen=True)
class Outlines:
    """Deviating documents without their texts, as arrays: a run may have very many.

    `task` (n,) indexes `tasks`; `rows[i]` of document i are `all_rows[starts[i]:starts[i + 1]]` of its sample table.
    """

    tasks: list[str]
    task: np.ndarray
    doc_id: np.ndarray
    badness: np.ndarray
    starts: np.ndarray
    all_rows: np.ndarray

    def __len__(self) -> int:
        return len(self.doc_id)

    def rows(self, index: int) -> list[int]:
        return [int(row) for row in self.all_rows[self.starts[index] : self.starts[index + 1]]]

    def order(self, seed: int = 0) -> np.ndarray:
        """Indices in the order in which prompts are taken."""
        return coded_turn_order(self.tasks, self.task, self.doc_id, self.badness, seed)


@dataclass(frozen=True)
class Deviations:
    """`deviating` go on to the analysis; `model_errors` are wrong in the reference too."""

    deviating: Outlines
    model_errors: Outlines


class DeviatedPrompts(Sequence[DeviatedPrompt]):
    """A sequence that reads each prompt from disk when it is asked for: a list of all could fill the memory.

    In the order in which prompts are taken for analysis, so that `[:3]` is a sensible choice.
    """

    def __init__(self, outlines: Outlines, builder: PromptBuilder, order: np.ndarray | None = None) -> None:
        self.outlines, self._builder = outlines, builder
        self.order = outlines.order() if order is None else order

    def reordered(self, seed: int) -> DeviatedPrompts:
        """The same prompts with ties drawn by another seed."""
        return DeviatedPrompts(self.outlines, self._builder, self.outlines.order(seed))

    def __len__(self) -> int:
        return len(self.outlines)

    @overload
    def __getitem__(self, index: int) -> DeviatedPrompt: ...
    @overload
    def __getitem__(self, index: slice) -> list[DeviatedPrompt]: ...
    def __getitem__(self, index: int | slice) -> DeviatedPrompt | list[DeviatedPrompt]:
        if isinstance(index, slice):
            return [self._build(int(item)) for item in self.order[index]]
        return self._build(int(self.order[index]))

    def __iter__(self) -> Iterator[DeviatedPrompt]:
        return (self._build(int(item)) for item in self.order)

    def _build(self, item: int) -> DeviatedPrompt:
        outlines = self.outlines
        task = outlines.tasks[int(outlines.task[item])]
        return self._builder.build(task, outlines.rows(item), float(outlines.badness[item]))


def find_deviations(verdicts: dict[str, TaskVerdicts], comparison: Comparison | None) -> Deviations:
    """Without a reference: what is not fully right.

    With one: what is worse than the reference's answer to the same document; what both get wrong is a model error. A
    document without a counterpart is judged without one.
    """
    tasks = list(verdicts)
    parts = []
    for code, (task, verdict) in enumerate(verdicts.items()):
        worse_by = None if comparison is None or task not in comparison.tasks else comparison.tasks[task].worse_by
        parts.append(_of_task(code, verdict, worse_by))
    return Deviations(_joined(tasks, [part[0] for part in parts]), _joined(tasks, [part[1] for part in parts]))


@dataclass(frozen=True)
class _Documents:
    """Documents of one task, with their rows one document after the other."""

    code: int
    doc_id: np.ndarray
    badness: np.ndarray
    counts: np.ndarray
    rows: np.ndarray

    def where(self, keep: np.ndarray) -> _Documents:
        return _Documents(
            self.code,
            self.doc_id[keep],
            self.badness[keep],
            self.counts[keep],
            self.rows[np.repeat(keep, self.counts)],
        )


def _of_task(code: int, verdict: TaskVerdicts, worse_by: np.ndarray | None) -> tuple[_Documents, _Documents]:
    """(deviating, model errors)."""
    wrong = verdict.right == 0
    gap_of_row = np.full(len(wrong), np.nan) if worse_by is None else worse_by
    chosen = np.flatnonzero(wrong | (gap_of_row > 0))
    docs = verdict.table.frame["doc_id"].to_numpy()[chosen]
    by_doc = np.argsort(docs, kind="stable")
    rows = chosen[by_doc]
    doc_id, starts, counts = np.unique(docs[by_doc], return_index=True, return_counts=True)
    if len(doc_id) == 0:
        nothing = _Documents(code, doc_id, np.zeros(0), counts, rows)
        return nothing, nothing
    badness = np.maximum.reduceat(verdict.badness[rows], starts)
    gap = np.fmax.reduceat(gap_of_row[rows], starts)  # NaN where no row has a counterpart
    compared = ~np.isnan(gap)
    badness = np.where(compared, np.where(gap < _HUGE, gap, np.inf), badness)
    found = _Documents(code, doc_id, badness, counts, rows)
    return found.where(~compared | (gap > 0)), found.where(compared & (gap <= 0))


def _joined(tasks: list[str], parts: list[_Documents]) -> Outlines:
    def join(arrays: list[np.ndarray], kind: type) -> np.ndarray:
        return np.concatenate(arrays).astype(kind) if arrays else np.zeros(0, kind)

    counts = join([part.counts for part in parts], np.int64)
    return Outlines(
        tasks=tasks,
        task=join([np.full(len(part.doc_id), part.code) for part in parts], np.int64),
        doc_id=join([part.doc_id for part in parts], np.int64),
        badness=join([part.badness for part in parts], np.float64),
        starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        all_rows=join([part.rows for part in parts], np.int64),
    )
