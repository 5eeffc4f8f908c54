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
from accuracy_core.numerics.sides import Sides, make_sides
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
    columns, about, base, target = sides.columns, sides.about, sides.base, sides.target
    reference = leaders(f, CONTENDERS)
    picked = leaders(_orderable(t) if columns else t, 5)
    winner = reference.ids[:, :1]
    winner_error = target.error.gather(-1, winner).squeeze(-1).abs_()
    d, broken = sides.difference, torch.zeros_like(sides.linf, dtype=torch.bool)
    if columns is not None:  # what is not finite in the target is an infinite error, what both mask is none
        d = Difference(torch.where(columns.valid, d.values, d.shift).masked_fill_(columns.bad, torch.inf), d.shift)
        broken = columns.bad.any(-1)
        winner_error.masked_fill_(columns.bad.gather(-1, winner).squeeze(-1), torch.inf)
    extremes = slice_extremes(e, d, plan.slices, _lowest(e, columns is not None))
    expected = extremes.top
    kl = kl_divergence(f, reference.values[:, :1], target.error, error_max=sides.linf, scratch=scratch)
    sign = torch.sign(sides.reference, out=scratch.like("first", f))
    count = about.count.squeeze(-1)
    cells, base_cells, contender_error = _base_shapes(sides, reference.ids)
    nan, none = sides.base_linf, torch.zeros(len(f), dtype=torch.int64, device=f.device)
    return Sweep(
        count=count,
        ref_linf=torch.maximum(reference.values[:, 0].abs(), sides.reference.amin(-1).abs()),
        ref_l2=(about.variance + about.mean.square()).mul(about.count).sqrt().squeeze(-1),
        linf=sides.linf.masked_fill(broken, torch.inf),
        l2=target.square.sqrt().squeeze(-1).masked_fill(broken, torch.inf),
        base_linf=sides.base_linf,
        base_l2=base.square.sqrt().squeeze(-1) if base else nan,
        shift=target.shift.squeeze(-1),
        expected_shift=sides.expected_shift.squeeze(-1),
        slope=1 + target.excess.squeeze(-1),
        base_slope=1 + base.excess.squeeze(-1) if base else nan,
        bias=(dot(sign, target.error, scratch) + target.shift * sign.sum(-1, keepdim=True)).squeeze(-1) / count,
        lean=lean(sign, target.error),
        base_lean=lean(sign, base.error) if base else nan,
        kl=kl.masked_fill(broken, torch.inf),
        winner_error=winner_error,
        slice_error=extremes.error,
        slice_size=extremes.size,
        expected_values=expected.values,
        expected_ids=expected.ids,
        reference_values=reference.values,
        reference_ids=reference.ids,
        contender_error=contender_error,
        target_values=picked.values,
        target_ids=picked.ids,
        base_cells=base_cells,
        target_cells=cells,
        non_finite=columns.non_finite if columns else none,
        mask_differs=columns.mask_differs if columns else none,
    )


def _base_shapes(sides: Sides, contenders: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Histograms of the target's and the baseline's errors, and the baseline's errors at `contenders` (rows, k)."""
    valid = sides.columns.valid if sides.columns else None
    counted = None if valid is None else thin(valid)
    if sides.base is None:
        empty = torch.zeros((len(contenders), 1), dtype=torch.int64, device=contenders.device)
        return empty, empty, torch.full_like(empty, torch.nan, dtype=torch.float32)
    at = sides.base.error.gather(-1, contenders)
    if valid is not None:
        at.masked_fill_(~valid.gather(-1, contenders), torch.nan)
    return histogram(thin(sides.target.error), counted), histogram(thin(sides.base.error), counted), at


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
