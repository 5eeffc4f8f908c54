"""The passes over the vocabulary: all that is done while a chunk of rows is in cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch

from accuracy_core.numerics.bias import lean
from accuracy_core.numerics.kl import kl_divergence
from accuracy_core.numerics.leaders import leaders
from accuracy_core.numerics.log_histogram import histogram, thin
from accuracy_core.numerics.plan import Plan
from accuracy_core.numerics.scratch import Scratch, dot
from accuracy_core.numerics.shift import Difference
from accuracy_core.numerics.sides import make_sides
from accuracy_core.numerics.topk_error import slice_extremes

#: leaders of the baseline whose errors stand for the noise among likely tokens (leaders of the expected logits would be
#: picked for their errors)
CONTENDERS = 50


@dataclass(frozen=True)
class Sweep:
    """What is known of rows after the passes. (rows,) unless a second dimension is named; NaN needs a baseline.

    Values and ids of leaders are (rows, k), descending; `slice_error`, `slice_size` (rows, slices) are the largest
    `|t - e|` and `|e|` in each slice of the tolerance map; `contender_error` (rows, k) is the baseline's error at the
    reference's leaders, NaN where masked; `base_cells`, `target_cells` (rows, cells) are histograms of both errors.
    `lean` and `base_lean` look at evenly thinned columns, everything else at all.
    """

    count: torch.Tensor
    ref_linf: torch.Tensor
    ref_l2: torch.Tensor
    linf: torch.Tensor
    l2: torch.Tensor
    base_linf: torch.Tensor
    base_l2: torch.Tensor
    shift: torch.Tensor
    expected_shift: torch.Tensor
    slope: torch.Tensor
    base_slope: torch.Tensor
    bias: torch.Tensor
    lean: torch.Tensor
    base_lean: torch.Tensor
    kl: torch.Tensor
    winner_error: torch.Tensor
    slice_error: torch.Tensor
    slice_size: torch.Tensor
    expected_values: torch.Tensor
    expected_ids: torch.Tensor
    reference_values: torch.Tensor
    reference_ids: torch.Tensor
    contender_error: torch.Tensor
    target_values: torch.Tensor
    target_ids: torch.Tensor
    base_cells: torch.Tensor
    target_cells: torch.Tensor
    non_finite: torch.Tensor
    mask_differs: torch.Tensor


def sweep(f: torch.Tensor, e: torch.Tensor, t: torch.Tensor, plan: Plan, scratch: Scratch, where: str) -> Sweep:
    """Passes over `f`, `e`, `t` (rows, vocab), float32 or float64; in two-way mode `f` is `e`.

    Raises ReferenceError_, naming `where`, for references that are none.
    """
    sides = make_sides(f, e, t, three_way=plan.three_way, scratch=scratch, where=where)
    columns, about, errors = sides.columns, sides.about, sides.errors
    reference = leaders(f, CONTENDERS)
    picked = leaders(_orderable(t) if columns else t, 5)
    at_contenders = errors.error.gather(-1, reference.ids.expand(len(errors.error), -1, -1))
    winner_error, infinite = at_contenders[0, :, 0].abs(), torch.zeros_like(sides.linf[0])
    d = sides.difference
    if columns is not None:  # what is not finite in the target is an infinite error, what both mask is none
        d = Difference(torch.where(columns.valid, d.values, d.shift).masked_fill_(columns.bad, torch.inf), d.shift)
        infinite.masked_fill_(columns.bad.any(-1), torch.inf)
        at_contenders.masked_fill_(~columns.valid.gather(-1, reference.ids), torch.nan)
        winner_error.masked_fill_(columns.bad.gather(-1, reference.ids[:, :1]).squeeze(-1), torch.inf)
    extremes = slice_extremes(e, d, plan.slices, _lowest(e, columns is not None))
    kl = kl_divergence(f, reference.values[:, :1], errors.error[0], error_max=sides.linf[0], scratch=scratch)
    sign = torch.sign(sides.reference, out=scratch.take("first", f))
    count = about.count.squeeze(-1)
    bias = (dot(sign, errors.error[0], scratch) + errors.shift[0] * sign.sum(-1, keepdim=True)).squeeze(-1) / count
    cells = histogram(thin(errors.error), None if columns is None else thin(columns.valid))
    l2, shift, excess = (x.squeeze(-1) for x in (errors.square.sqrt(), errors.shift, errors.excess))
    leaning = lean(sign, errors.error)
    none = torch.zeros(len(f), dtype=torch.int64, device=f.device)

    def base(x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        return x[1] if plan.three_way else torch.full_like(x[0], 0 if dtype else torch.nan)

    return Sweep(
        count=count,
        ref_linf=torch.maximum(reference.values[:, 0].abs(), sides.reference.amin(-1).abs()),
        ref_l2=(about.variance + about.mean.square()).mul(about.count).sqrt().squeeze(-1),
        linf=sides.linf[0] + infinite,
        l2=l2[0] + infinite,
        base_linf=base(sides.linf),
        base_l2=base(l2),
        shift=shift[0],
        expected_shift=sides.expected_shift.squeeze(-1),
        slope=1 + excess[0],
        base_slope=1 + base(excess),
        bias=bias,
        lean=leaning[0],
        base_lean=base(leaning),
        kl=kl + infinite,
        winner_error=winner_error,
        slice_error=extremes.error,
        slice_size=extremes.size,
        expected_values=extremes.top.values,
        expected_ids=extremes.top.ids,
        reference_values=reference.values,
        reference_ids=reference.ids,
        contender_error=base(at_contenders),
        target_values=picked.values,
        target_ids=picked.ids,
        base_cells=base(cells, torch.int64),
        target_cells=cells[0],
        non_finite=columns.non_finite if columns else none,
        mask_differs=columns.mask_differs if columns else none,
    )


def _orderable(t: torch.Tensor) -> torch.Tensor:
    """NaN sorts last: a NaN never wins."""
    return t.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


def _lowest(e: torch.Tensor, masked: bool) -> torch.Tensor:
    return (e.masked_fill(e.isinf(), 0) if masked else e).amin(-1)


def concatenate(parts: Sequence[Sweep]) -> Sweep:
    """Rows of several sweeps, in order."""
    if len(parts) == 1:
        return parts[0]
    return Sweep(**{f.name: torch.cat([getattr(p, f.name) for p in parts]) for f in fields(Sweep)})
