"""All metrics of one chunk of rows, vectorised over the rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from accuracy_core.numerics import log_histogram
from accuracy_core.numerics.agreement import top_overlap
from accuracy_core.numerics.bhattacharyya import bhattacharyya
from accuracy_core.numerics.bias import lean
from accuracy_core.numerics.choices import choose
from accuracy_core.numerics.columns import Columns, compare_columns
from accuracy_core.numerics.kl import kl_divergence
from accuracy_core.numerics.leaders import Leaders, leaders
from accuracy_core.numerics.plan import Plan
from accuracy_core.numerics.row_stats import RowStats
from accuracy_core.numerics.scratch import Scratch
from accuracy_core.numerics.shift import Centred, Difference, Shifted, between, centre, remove_shift
from accuracy_core.numerics.topk_error import largest_k, topk_errors

#: leaders of the baseline whose errors stand for the noise among likely tokens (leaders of the expected logits would be
#: picked for their errors)
CONTENDERS = 50


@dataclass(frozen=True)
class Chunk:
    """Rows in float32 (or float64): `f`, `e`, `t` (rows, vocab); in two-way mode `f is e`.

    `padding` (rows, columns beyond the vocabulary) of the target, None if it has none; `sampled` (rows,) ids or None;
    `prompt`, `batch`, `token` (rows,) int64; `where` names the rows in errors.
    """

    f: torch.Tensor
    e: torch.Tensor
    t: torch.Tensor
    padding: torch.Tensor | None
    sampled: torch.Tensor | None
    prompt: torch.Tensor
    batch: torch.Tensor
    token: torch.Tensor
    where: str


@dataclass(frozen=True)
class Measured:
    """`rows`, and counts on the log grid: `base`, `target` (rows, cells) of `|e - f|` and `|t - f|`; `pair`, `head`
    (cells,) of the baseline's errors among likely tokens: between two of them, and at one of them."""

    rows: RowStats
    base: torch.Tensor
    target: torch.Tensor
    pair: torch.Tensor
    head: torch.Tensor


@dataclass(frozen=True)
class _Sides:
    """Both sides against f, the target against e, and which columns count. `base` is None in two-way mode."""

    about: Centred
    target: Shifted
    base: Shifted | None
    against_expected: Difference
    expected_shift: torch.Tensor
    columns: Columns | None

    @property
    def valid(self) -> torch.Tensor | None:
        return self.columns.valid if self.columns else None


def measure(chunk: Chunk, plan: Plan, scratch: Scratch | None = None) -> Measured:
    """Metrics of every row of `chunk`. Raises ReferenceError_ for a reference that is no reference."""
    scratch = scratch or Scratch()
    sides = _sides(chunk, plan, None, scratch)
    largest = [_largest(x.error) for x in (sides.target, sides.base) if x] + [_largest(chunk.f)]
    if not bool(torch.isfinite(torch.stack(largest)).all()):  # once more, with masks
        sides = _sides(chunk, plan, compare_columns(chunk.f, chunk.e, chunk.t, chunk.where), scratch)
        largest = [_largest(x.error) for x in (sides.target, sides.base) if x]
        largest.append(_largest(chunk.f.masked_fill(chunk.f.isinf(), 0)))
    return _measure(chunk, plan, sides, largest, scratch)


def _sides(chunk: Chunk, plan: Plan, columns: Columns | None, scratch: Scratch) -> _Sides:
    f, e, t, valid = chunk.f, chunk.e, chunk.t, None
    if columns is not None:
        valid = columns.valid
        f, e, t = (x.masked_fill(~valid, 0) for x in (f, e, t))
    about = centre(f, valid, scratch)
    target = remove_shift(f, t, about, valid, scratch, "target")
    if not plan.three_way:
        on_e = Difference(target.error, torch.zeros_like(target.shift))
        return _Sides(about, target, None, on_e, target.shift, columns)
    base = remove_shift(f, e, about, valid, scratch, "base")
    on_e = between(base, target, about, scratch)
    return _Sides(about, target, base, on_e, target.shift - base.shift + on_e.shift, columns)


def _measure(chunk: Chunk, plan: Plan, sides: _Sides, largest: list[torch.Tensor], scratch: Scratch) -> Measured:
    columns, valid, about, base, on_f = sides.columns, sides.valid, sides.about, sides.base, sides.target
    linf, base_linf, ref_linf = largest[0], largest[1] if base else torch.full_like(largest[0], torch.nan), largest[-1]
    expected = leaders(chunk.e, max(largest_k(plan.slices, plan.vocab), 5))
    reference = leaders(chunk.f, CONTENDERS) if base else expected
    target = leaders(_orderable(chunk.t) if columns else chunk.t, 5)
    winner = reference.argmax.unsqueeze(-1)
    winner_error = on_f.error.gather(-1, winner).squeeze(-1).abs()
    broken = columns.bad.any(-1) if columns else torch.zeros_like(linf, dtype=torch.bool)
    on_e = sides.against_expected
    if columns is not None:  # what is not finite in the target is an infinite error, what both mask is none
        values = torch.where(columns.valid, on_e.values, on_e.shift).masked_fill_(columns.bad, torch.inf)
        on_e = Difference(values, on_e.shift)
        winner_error.masked_fill_(columns.bad.gather(-1, winner).squeeze(-1), torch.inf)
    topk = topk_errors(on_e, expected, plan.slices, expected_max=_size(chunk.e, expected, columns), vocab=plan.vocab)
    kl = kl_divergence(chunk.f, reference.values[:, :1], on_f.error, scratch)
    sign = torch.sign(chunk.f if valid is None else chunk.f.masked_fill(~valid, 0), out=scratch.like("first", chunk.f))
    leaning = lean(sign, on_f, about.count, scratch)
    histograms = _histograms(base, on_f, reference, valid, len(linf))
    stats = {
        "prompt": chunk.prompt,
        "batch": chunk.batch,
        "token": chunk.token,
        "count": about.count,
        "topk": topk,
        "ref_linf": ref_linf,
        "ref_l2": (about.variance + about.mean.square()).mul(about.count).sqrt(),
        "linf": linf.masked_fill(broken, torch.inf),
        "l2": on_f.square.sqrt().squeeze(-1).masked_fill(broken, torch.inf),
        "base_linf": base_linf,
        "base_l2": base.square.sqrt() if base else base_linf,
        "shift": on_f.shift,
        "slope": 1 + on_f.excess,
        "base_slope": 1 + base.excess if base else base_linf,
        "bias": leaning + on_f.shift * sign.sum(-1, keepdim=True) / about.count,
        "lean": leaning,
        "base_lean": lean(sign, base, about.count, scratch) if base else base_linf,
        "bc": bhattacharyya(histograms[0], histograms[1], min_samples=plan.bc_min_samples),
        "kl": kl.masked_fill(broken, torch.inf),
        "top5_overlap": top_overlap(reference.ids[:, :5], target.ids),
        "winner_error": winner_error,
        "winner_size": reference.values[:, 0].abs(),
        "expected_top2": _top2(expected),
        "target_top2": _top2(target),
        "non_finite": columns.non_finite if columns else torch.zeros_like(chunk.prompt),
        "mask_differs": columns.mask_differs if columns else torch.zeros_like(chunk.prompt),
    }
    shift = sides.expected_shift.squeeze(-1)
    picks = choose(chunk.t, chunk.padding, chunk.f, chunk.sampled, expected, reference, target, shift)
    return Measured(_table(stats | picks), *histograms)


_IDS = ("reference_id", "expected_id", "target_id", "target_argmax", "padding_id")
_INTEGERS = frozenset({"prompt", "batch", "token", "non_finite", "mask_differs", *_IDS})
_WIDE = frozenset(("topk", "expected_top2", "target_top2"))


def _table(stats: dict[str, torch.Tensor]) -> RowStats:
    """Columns on the CPU, (rows,) or (rows, few), in int64 or float64."""
    columns = {}
    for name, x in stats.items():
        x = x.to("cpu", torch.int64 if name in _INTEGERS else torch.float64)
        columns[name] = x if name in _WIDE else x.reshape(-1)
    return RowStats(**columns)


def _largest(x: torch.Tensor) -> torch.Tensor:
    """`max |x|` per row; two plain reductions are much faster than one over absolute values."""
    return torch.maximum(x.amax(-1), -x.amin(-1))


def _size(e: torch.Tensor, expected: Leaders, columns: Columns | None) -> torch.Tensor:
    """`max |e|` per row over what is not masked."""
    lowest = e.amin(-1) if columns is None else e.masked_fill(e.isinf(), 0).amin(-1)
    return torch.maximum(expected.values[:, 0].abs(), lowest.abs())


def _orderable(t: torch.Tensor) -> torch.Tensor:
    """NaN sorts last: a NaN never wins."""
    return t.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


def _top2(side: Leaders) -> torch.Tensor:
    two = side.values[:, :2]
    return two if two.shape[1] == 2 else torch.cat([two, torch.full_like(two, torch.nan)], -1)


def _histograms(
    base: Shifted | None, on_f: Shifted, reference: Leaders, valid: torch.Tensor | None, rows: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """`base`, `target`, `pair`, `head` of Measured; all zero without a baseline."""
    if base is None:
        empty = torch.zeros((rows, log_histogram.CELLS), dtype=torch.int64)
        return empty, empty, empty[0], empty[0]
    thin_valid = None if valid is None else log_histogram.thin(valid)
    sides = [log_histogram.histogram(log_histogram.thin(x.error), thin_valid) for x in (base, on_f)]
    head = base.error.gather(-1, reference.ids)
    pair = head[:, 1:] - head[:, :1]
    counted = None if valid is None else valid.gather(-1, reference.ids)
    both = None if counted is None else counted[:, 1:] & counted[:, :1]
    return (
        sides[0],
        sides[1],
        log_histogram.histogram(pair, both).sum(0),
        log_histogram.histogram(head, counted).sum(0),
    )
