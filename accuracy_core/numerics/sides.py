"""Target and expected side of a chunk of rows, each as an error without its shift."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from accuracy_core.numerics.columns import Columns, compare_columns
from accuracy_core.numerics.scratch import Scratch
from accuracy_core.numerics.shift import Centred, Difference, Shifted, between, centre, remove_shift


@dataclass(frozen=True)
class Sides:
    """Errors (rows, vocab) of the target and of the expected logits (`base`, None in two-way mode) against the
    reference.

    `difference` is the target against the expected logits, `expected_shift` (rows, 1) its whole shift. `linf`,
    `base_linf` (rows,) are the largest errors; `reference` (rows, vocab) is f, 0 in columns that do not count;
    `columns` says which those are, None: all count.
    """

    reference: torch.Tensor
    about: Centred
    target: Shifted
    base: Shifted | None
    difference: Difference
    expected_shift: torch.Tensor
    linf: torch.Tensor
    base_linf: torch.Tensor
    columns: Columns | None


def make_sides(
    f: torch.Tensor, e: torch.Tensor, t: torch.Tensor, *, three_way: bool, scratch: Scratch, where: str
) -> Sides:
    """Errors of `t` and `e` against `f`, all (rows, vocab). Raises ReferenceError_ for references that are none."""
    sides = _make(f, e, t, None, three_way, scratch)
    checks = [sides.linf, sides.base_linf] if three_way else [sides.linf]
    if bool(torch.isfinite(torch.stack(checks)).all()):
        return sides  # an error is finite only where both its sides are
    return _make(f, e, t, compare_columns(f, e, t, where), three_way, scratch)


def _make(
    f: torch.Tensor, e: torch.Tensor, t: torch.Tensor, columns: Columns | None, three_way: bool, scratch: Scratch
) -> Sides:
    valid = columns.valid if columns else None
    if valid is not None:
        f, e, t = (x.masked_fill(~valid, 0) for x in (f, e, t))
    about = centre(f, valid, scratch)
    target = remove_shift(f, t, about, valid, scratch, "target")
    linf = largest(target.error)
    if not three_way:
        same = Difference(target.error, torch.zeros_like(target.shift))
        return Sides(f, about, target, None, same, target.shift, linf, torch.full_like(linf, torch.nan), columns)
    base = remove_shift(f, e, about, valid, scratch, "base")
    d = between(base, target, about, scratch)
    shift = target.shift - base.shift + d.shift
    return Sides(f, about, target, base, d, shift, linf, largest(base.error), columns)


def largest(x: torch.Tensor) -> torch.Tensor:
    """`max |x|` per row; two plain reductions are much faster than one over absolute values."""
    return torch.maximum(x.amax(-1), -x.amin(-1))
