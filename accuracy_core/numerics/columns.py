"""Which vocabulary columns of a chunk can be compared, and which differ in being there at all."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from accuracy_core.errors import ReferenceError_


@dataclass(frozen=True)
class Columns:
    """Bool masks (rows, vocab). `valid`: finite on all sides. `bad`: finite in the reference, not in the target.

    `non_finite` and `mask_differs` (rows,) count NaN or +inf in the target, and -inf masks on one side only.
    """

    valid: torch.Tensor
    bad: torch.Tensor
    non_finite: torch.Tensor
    mask_differs: torch.Tensor


def compare_columns(f: torch.Tensor, e: torch.Tensor, t: torch.Tensor, where: str) -> Columns:
    """Masks for reference rows `f`, `e` and target rows `t`, all (rows, vocab).

    Positions masked (-inf) on every side drop out. Raises ReferenceError_ naming `where` when a reference is NaN or
    +inf, when the references mask different columns, or when they mask all of a row.
    """
    for name, x in (("baseline", f), ("expected", e)) if f is not e else (("expected", e),):
        broken = (x.isnan() | x.isposinf()).any(-1)
        if bool(broken.any()):
            row = int(broken.int().argmax())
            raise ReferenceError_(
                f"the {name} logits hold NaN or +inf ({where}, row {row} of the chunk): nothing to compare with",
                fix="recompute the golden; if it stays, the reference model or its loader is broken",
            )
    if bool((f.isneginf() != e.isneginf()).any()):
        raise ReferenceError_(
            f"baseline and expected logits mask (-inf) different vocabulary positions ({where})",
            fix="compute both references with the same masks and logits processors",
        )
    known = f.isfinite()
    if not bool(known.any(-1).all()):
        raise ReferenceError_(f"a reference row masks the whole vocabulary ({where})", fix="recompute the golden")
    here = t.isfinite()
    bad = known & ~here
    masked = bad & t.isneginf()
    return Columns(
        valid=known & here,
        bad=bad,
        non_finite=(bad & ~masked).sum(-1),
        mask_differs=masked.sum(-1) + (~known & ~t.isneginf()).sum(-1),
    )
