"""All metrics of one chunk of rows, vectorised over the rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from accuracy_core.numerics import log_histogram
from accuracy_core.numerics.agreement import top_overlap
from accuracy_core.numerics.bhattacharyya import bhattacharyya
from accuracy_core.numerics.bias import signed_bias
from accuracy_core.numerics.choices import choose
from accuracy_core.numerics.columns import Columns, compare_columns
from accuracy_core.numerics.kl import kl_divergence
from accuracy_core.numerics.leaders import Leaders, leaders
from accuracy_core.numerics.plan import Plan
from accuracy_core.numerics.row_stats import RowStats
from accuracy_core.numerics.shift import Shifted, centre, remove_shift
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


def measure(chunk: Chunk, plan: Plan) -> Measured:
    """Metrics of every row of `chunk`. Raises ReferenceError_ for a reference that is no reference."""
    result = _measure(chunk, plan, None)
    if result is None:  # something is not finite: once more, with masks
        result = _measure(chunk, plan, compare_columns(chunk.f, chunk.e, chunk.t, chunk.where))
        assert result is not None
    return result


def _measure(chunk: Chunk, plan: Plan, columns: Columns | None) -> Measured | None:
    f, e, t, valid = chunk.f, chunk.e, chunk.t, None
    if columns is not None:
        valid = columns.valid
        f, e, t = (x.masked_fill(~valid, 0) for x in (f, e, t))
    about_f = centre(f, valid)
    on_f = remove_shift(f, t, about_f, valid)
    if plan.three_way:
        base = remove_shift(f, e, about_f, valid)
        on_e = remove_shift(e, t, centre(e, valid), valid)
    else:
        base, on_e = None, on_f
    f_low, f_high = f.amin(-1), f.amax(-1)
    linf, two_way_linf = _largest(on_f.error), _largest(on_e.error)
    base_linf = _largest(base.error) if base else torch.full_like(linf, torch.nan)
    if columns is None:
        sums = f_low + f_high + linf + two_way_linf
        if not bool(torch.isfinite(sums + base_linf if base else sums).all()):
            return None

    expected = leaders(chunk.e, max(largest_k(plan.slices, plan.vocab), 5))
    reference = leaders(chunk.f, CONTENDERS) if plan.three_way else expected
    target = leaders(
        chunk.t.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf) if valid is not None else t, 5
    )

    two_way_error = on_e.error if columns is None else on_e.error.masked_fill(columns.bad, torch.inf)
    broken = columns.bad.any(-1) if columns is not None else torch.zeros_like(linf, dtype=torch.bool)
    topk = topk_errors(
        two_way_error,
        expected,
        plan.slices,
        error_max=two_way_linf.masked_fill(broken, torch.inf),
        expected_max=torch.maximum(e.amax(-1), -e.amin(-1)),
        vocab=plan.vocab,
    )

    top5 = top_overlap(reference.ids[:, :5], target.ids)
    picks = choose(chunk.t, chunk.padding, chunk.f, chunk.sampled, expected, reference, target)
    winner = reference.argmax.unsqueeze(-1)
    winner_lost = columns.bad.gather(-1, winner).squeeze(-1) if columns is not None else broken
    winner_error = on_f.error.gather(-1, winner).squeeze(-1).abs().masked_fill(winner_lost, torch.inf)
    kl = kl_divergence(chunk.f, chunk.f.amax(-1, keepdim=True), on_f.error).masked_fill(broken, torch.inf)

    sign = torch.sign(f)
    sign_sum, count = sign.sum(-1), about_f.count.squeeze(-1)
    bias = signed_bias(sign, sign_sum, on_f, count)
    nan = torch.full_like(linf, torch.nan)
    rows = len(linf)
    histograms = _histograms(base, on_f, reference, valid, rows)
    bc = nan.double() if base is None else bhattacharyya(histograms[0], histograms[1], min_samples=plan.bc_min_samples)
    base_bias = signed_bias(sign, sign_sum, base, count) if base else nan
    zero = torch.zeros_like(count)
    stats = {
        "prompt": chunk.prompt,
        "batch": chunk.batch,
        "token": chunk.token,
        "count": count,
        "topk": topk,
        "ref_linf": torch.maximum(f_high, -f_low),
        "ref_l2": torch.linalg.vector_norm(f, dim=-1),
        "linf": linf.masked_fill(broken, torch.inf),
        "l2": torch.linalg.vector_norm(on_f.error, dim=-1).masked_fill(broken, torch.inf),
        "base_linf": base_linf,
        "base_l2": torch.linalg.vector_norm(base.error, dim=-1) if base else nan,
        "shift": on_f.shift,
        "slope": on_f.slope,
        "base_slope": base.slope if base else nan,
        "bias": bias,
        "base_bias": base_bias,
        "lean": bias - on_f.shift * sign_sum / count,
        "base_lean": base_bias - base.shift * sign_sum / count if base else nan,
        "bc": bc,
        "kl": kl,
        "top5_overlap": top5,
        "expected_top2": _top2(expected),
        "target_top2": _top2(target),
        "non_finite": zero if columns is None else columns.non_finite,
        "mask_differs": zero if columns is None else columns.mask_differs,
        "winner_error": winner_error,
        "winner_size": reference.values[:, 0].abs(),
        **picks,
    }
    table = RowStats(**{k: v.to(torch.int64 if k in _INTEGERS else torch.float64).cpu() for k, v in stats.items()})
    return Measured(table, *histograms)


_INTEGERS = frozenset(
    [
        "prompt",
        "batch",
        "token",
        "reference_id",
        "expected_id",
        "target_id",
        "target_argmax",
        "non_finite",
        "mask_differs",
        "padding_id",
    ]
)


def _largest(error: torch.Tensor) -> torch.Tensor:
    """`max |error|` per row; two plain reductions are much faster than one over absolute values."""
    return torch.maximum(error.amax(-1), -error.amin(-1))


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
