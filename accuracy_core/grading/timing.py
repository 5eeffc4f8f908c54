"""Steps of a submission: the same steps are timed, counted and compared, so that no phase can be told from another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from accuracy_core.errors import NotMeasuredError
from accuracy_core.grading.counting import StepCount, counter
from accuracy_core.grading.process import SubmissionProcess
from accuracy_core.grading.shape import make_tokens
from accuracy_core.grading.task import GradeTask


@dataclass
class Timed:
    """Over all counted steps. `launches`: of the worst step; `uncounted`: why a step could not be counted."""

    seconds: list[float] = field(default_factory=list)
    counts: list[StepCount] = field(default_factory=list)
    uncounted: str = ""

    @property
    def seconds_per_step(self) -> float:
        """The mean: a median would let most of the work hide in a few slow steps."""
        return sum(self.seconds) / len(self.seconds) if self.seconds else float("nan")

    @property
    def busy(self) -> float:
        """Seconds that operators (kernels) ran, per step."""
        return sum(count.total for count in self.counts) / 1e9 / len(self.counts) if self.counts else float("nan")

    @property
    def launches(self) -> int:
        return max((count.launches for count in self.counts), default=0)

    @property
    def dominant_share(self) -> float:
        total = sum(count.total for count in self.counts)
        return sum(count.longest for count in self.counts) / total if total else 0.0

    @property
    def dominant(self) -> str:
        return max(self.counts, key=lambda count: count.longest).dominant if self.counts else ""


def run_sequence(
    process: SubmissionProcess, task: GradeTask, seed: int, device: str, timed: Timed | None = None
) -> torch.Tensor:
    """Logits float32 (steps, batch, vocab) of one sequence. Each token is told when the logits before it are here.

    With `timed`, every step is timed and counted into it; without, memory that the submission asks for is poisoned.
    """
    process.begin(seed, task.steps, poison=timed is None)
    rows = []
    for tokens in make_tokens(task.config, seed + 1, task.steps).tolist():
        answer = process.step(tokens, counted=timed is not None)
        assert answer.logits is not None
        rows.append(answer.logits)
        if timed is None:
            continue
        timed.seconds.append(answer.seconds)
        try:
            timed.counts.append(counter(device)(answer.events))
        except NotMeasuredError as error:
            timed.uncounted = error.message
    return torch.stack(rows)


def seeds(first: int, count: int) -> Iterator[int]:
    """`count` seeds of sequences; a sequence uses its seed for the cache and the next number for its tokens."""
    return iter(range(first, first + 2 * count, 2))
