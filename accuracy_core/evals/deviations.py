"""From verdicts to deviated prompts: who deviates, in which order, and each one's request as it was sent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload

import numpy as np

from accuracy_core.evals.comparison import Comparison
from accuracy_core.evals.prompt_records import PromptBuilder
from accuracy_core.evals.selection import in_turns
from accuracy_core.evals.verdict_table import TaskVerdicts
from accuracy_core.schemas import DeviatedPrompt


@dataclass
class Outline:
    """A deviating document without its texts: rows of its table, per filter the verdict, how bad."""

    task: str
    doc_id: int
    rows: list[int]
    badness: float
    worse_than_reference: bool = True


@dataclass
class Deviations:
    """`deviating` go on to the analysis; `model_errors` are wrong in the reference too."""

    deviating: list[Outline] = field(default_factory=list)
    model_errors: list[Outline] = field(default_factory=list)


class DeviatedPrompts(Sequence[DeviatedPrompt]):
    """A sequence that reads each prompt from disk when it is asked for: a list of all could fill the memory.

    In the order in which prompts are taken for analysis, so that `[:3]` is a sensible choice.
    """

    def __init__(self, outlines: list[Outline], builder: PromptBuilder) -> None:
        self.outlines, self._builder = outlines, builder

    def __len__(self) -> int:
        return len(self.outlines)

    @overload
    def __getitem__(self, index: int) -> DeviatedPrompt: ...
    @overload
    def __getitem__(self, index: slice) -> list[DeviatedPrompt]: ...
    def __getitem__(self, index: int | slice) -> DeviatedPrompt | list[DeviatedPrompt]:
        if isinstance(index, slice):
            return [self._build(outline) for outline in self.outlines[index]]
        return self._build(self.outlines[index])

    def __iter__(self) -> Iterator[DeviatedPrompt]:
        return (self._build(outline) for outline in self.outlines)

    def _build(self, outline: Outline) -> DeviatedPrompt:
        return self._builder.build(outline.task, outline.rows, outline.badness)


def find_deviations(verdicts: dict[str, TaskVerdicts], comparison: Comparison | None) -> Deviations:
    """Without a reference: what is not fully right. With one: what is worse than the reference's answer to the same
    document; what both get wrong is a model error. A document without a counterpart is judged without one.
    """
    found = Deviations()
    for task, verdict in verdicts.items():
        worse_by = None if comparison is None or task not in comparison.tasks else comparison.tasks[task].worse_by
        for outline in _of_task(task, verdict, worse_by):
            (found.deviating if outline.worse_than_reference else found.model_errors).append(outline)
    found.deviating = in_turns(found.deviating)
    found.model_errors = in_turns(found.model_errors)
    return found


def _of_task(task: str, verdict: TaskVerdicts, worse_by: np.ndarray | None) -> Iterator[Outline]:
    wrong = verdict.right == 0
    worse = np.zeros(len(wrong), bool) if worse_by is None else np.nan_to_num(worse_by, nan=0.0) > 0
    docs = verdict.table.frame["doc_id"].to_numpy()
    rows_of: dict[int, list[int]] = {}
    for row in np.flatnonzero(wrong | worse):
        rows_of.setdefault(int(docs[row]), []).append(int(row))
    for doc, rows in rows_of.items():
        if worse_by is None:
            yield Outline(task, doc, rows, float(verdict.badness[rows].max()))
            continue
        gaps = worse_by[rows]
        compared = gaps[~np.isnan(gaps)]
        if len(compared) == 0:
            yield Outline(task, doc, rows, float(verdict.badness[rows].max()))
        else:
            gap = float(compared.max())
            yield Outline(task, doc, rows, gap if gap < 1e299 else math.inf, worse_than_reference=gap > 0)
