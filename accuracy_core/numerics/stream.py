"""Walk over all rows in chunks, keep only what can be added up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from accuracy_core.numerics.inputs import PromptLogits
from accuracy_core.numerics.log_histogram import CELLS
from accuracy_core.numerics.measure import Measured, RowInputs, measure
from accuracy_core.numerics.plan import Plan
from accuracy_core.numerics.row_stats import RowStats, concatenate
from accuracy_core.numerics.scratch import Scratch
from accuracy_core.numerics.sweep import concatenate as join
from accuracy_core.numerics.sweep import sweep

_ROWS_AT_A_TIME = 64


@dataclass(frozen=True)
class RunStats:
    """Everything known about a run's rows.

    `rows` in order of prompt, token, batch row; `base`, `target` (tokens, cells): error histograms pooled per
    generation index; `pair`, `head` (cells,): the baseline's errors among likely tokens; `tokens`: how many the
    reference has, per prompt; `missing`: (prompt, first missing token) of every prompt whose target ended early.
    """

    rows: RowStats
    base: torch.Tensor
    target: torch.Tensor
    pair: torch.Tensor
    head: torch.Tensor
    tokens: tuple[int, ...]
    missing: tuple[tuple[int, int], ...]


def stream(prompts: Iterable[PromptLogits], plan: Plan) -> RunStats:
    """Measure all rows of `prompts` (already checked). Raises ReferenceError_ for non-finite references.

    Memory beyond the inputs: a few buffers of one chunk, one table row per row, two histograms per generation index.
    """
    tables: list[RowStats] = []
    scratch = Scratch()
    missing: list[tuple[int, int]] = []
    base = torch.zeros((0, CELLS), dtype=torch.int64)
    target, wanted = base.clone(), []
    pair, head = torch.zeros(CELLS, dtype=torch.int64), torch.zeros(CELLS, dtype=torch.int64)
    for index, prompt in enumerate(prompts):
        wanted.append(prompt.reference_tokens)
        tokens = prompt.target.shape[0]
        if tokens < prompt.reference_tokens:
            missing.append((index, tokens))
        if tokens > base.shape[0]:
            more = torch.zeros((tokens - base.shape[0], CELLS), dtype=torch.int64)
            base, target = torch.cat([base, more]), torch.cat([target, more])
        for part in _measured(index, prompt, plan, scratch):
            tables.append(part.rows)
            if plan.three_way:
                base.index_add_(0, part.rows.token, part.base)
                target.index_add_(0, part.rows.token, part.target)
                pair += part.pair
                head += part.head
    return RunStats(concatenate(tables), base, target, pair, head, tuple(wanted), tuple(missing))


def _measured(index: int, prompt: PromptLogits, plan: Plan, scratch: Scratch) -> Iterator[Measured]:
    """Rows of one prompt: swept chunk by chunk, then measured many at a time, as small tensors cost only overhead."""
    tokens, batch, width = prompt.target.shape
    total, vocab = tokens * batch, plan.vocab
    wide = torch.float64 if prompt.expected.dtype == torch.float64 else torch.float32

    def flat(x: torch.Tensor) -> torch.Tensor:
        return x.detach()[:tokens].reshape(total, x.shape[-1])

    t, e = flat(prompt.target), flat(prompt.expected)
    f = e if prompt.baseline is None else flat(prompt.baseline)
    ids = None if prompt.sampled is None else prompt.sampled.reshape(total).to(t.device)
    for start in range(0, total, max(_ROWS_AT_A_TIME, plan.chunk_rows)):
        stop = min(start + max(_ROWS_AT_A_TIME, plan.chunk_rows), total)
        swept = []
        for at in range(start, stop, plan.chunk_rows):
            part = slice(at, min(at + plan.chunk_rows, stop))
            f_, e_, t_ = (x[part, :vocab].to(t.device, wide) for x in (f, e, t))
            where = f"prompt {index}, tokens {part.start // batch} to {(part.stop - 1) // batch}"
            swept.append(sweep(f_ if f is not e else e_, e_, t_, plan, scratch, where))
        rows = slice(start, stop)
        row = torch.arange(start, stop)
        inputs = RowInputs(
            f=f[rows, :vocab],
            t=t[rows, :vocab],
            padding=t[rows, vocab:] if width > vocab else None,
            sampled=None if ids is None else ids[rows],
            prompt=torch.full_like(row, index),
            batch=row % batch,
            token=row // batch,
        )
        yield measure(join(swept), inputs, plan)
