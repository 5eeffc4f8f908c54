"""Target and expected side of a chunk of rows, each as an error without its shift."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from accuracy_core.numerics.columns import Columns, compare_columns
from accuracy_core.numerics.scratch import Scratch
from accuracy_core.numerics.shift import Centred, Difference, Shifted, between, centre, remove_shift


@dataclass(frozen=True)
class Sides:
    """Errors of the target (side 0) and, in three-way mode, of the expected logits (side 1) against the reference.

    `linf` (sides, rows) are the largest errors; `difference` is the target against the expected logits,
    `expected_shift` (rows, 1) its whole shift; `reference` (rows, vocab) is f, 0 in columns that do not count;
    `columns` says which those are, None: all count.
    """

    reference: torch.Tensor
    about: Centred
    errors: Shifted
    linf: torch.Tensor
    difference: Difference
    expected_shift: torch.Tensor
    columns: Columns | None


def make_sides(
    f: torch.Tensor, e: torch.Tensor, t: torch.Tensor, *, three_way: bool, scratch: Scratch, where: str
) -> Sides:
    """Errors of `t` and `e` against `f`, all (rows, vocab). Raises ReferenceError_ for references that are none."""
    sides = _make(f, e, t, None, three_way, scratch)
    if bool(torch.isfinite(sides.linf).all()):
        return sides  # an error is finite only where both its sides are
    return _make(f, e, t, compare_columns(f, e, t, where), three_way, scratch)


def _make(
    f: torch.Tensor, e: torch.Tensor, t: torch.Tensor, columns: Columns | None, three_way: bool, scratch: Scratch
) -> Sides:
    valid = columns.valid if columns else None
    if valid is not None:
        f, e, t = (x.masked_fill(~valid, 0) for x in (f, e, t))
    about = centre(f, valid, scratch)
    errors = remove_shift(f, (t, e) if three_way else (t,), about, valid, scratch)
    linf = torch.maximum(errors.error.amax(-1), -errors.error.amin(-1))  # much faster than over absolute values
    if not three_way:
        same = Difference(errors.error[0], torch.zeros_like(about.mean))
        return Sides(f, about, errors, linf, same, errors.shift[0], columns)
    d = between(errors, about, scratch)
    return Sides(f, about, errors, linf, d, errors.shift[0] - errors.shift[1] + d.shift, columns)
