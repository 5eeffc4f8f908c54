"""The error that calibration measures: Frobenius, relative, over all logits or the largest ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from accuracy_core.errors import InputMismatchError

#: keys of the tables: the largest k logits of the reference's row, or all
TOPS: dict[str, int | None] = {"10": 10, "50": 50, "1000": 1000, "all": None}


def relative_error(actual: torch.Tensor, expected: torch.Tensor, top: int | None = None) -> float:
    """`||actual - expected|| / ||expected||` over all rows, (rows, columns) each; float64 inside.

    With `top`, over the columns of each row where `expected` has its `top` largest values (all of a narrower row). 0/0
    is 0: exact. Raises InputMismatchError for shapes that differ, or an expected side that is not finite; NaN in
    `actual` gives infinity.
    """
    if actual.shape != expected.shape:
        raise InputMismatchError(f"shapes {tuple(actual.shape)} and {tuple(expected.shape)} differ")
    want, got = expected.double(), actual.double()
    if not bool(torch.isfinite(want).all()):
        raise InputMismatchError("the expected side holds NaN or infinity: nothing can be measured against it")
    if top is not None and top < want.shape[-1]:
        columns = want.topk(top, dim=-1).indices
        want, got = want.gather(-1, columns), got.gather(-1, columns)
    error, size = float((got - want).norm()), float(want.norm())
    if math.isnan(error):
        return math.inf
    if error == 0:
        return 0.0
    return error / size if size else math.inf


def error_table(actual: torch.Tensor, expected: torch.Tensor) -> dict[str, float]:
    """`relative_error` for each of TOPS."""
    return {name: relative_error(actual, expected, top) for name, top in TOPS.items()}


def top1_agreement(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Share of rows with the same argmax."""
    return float((actual.argmax(-1) == expected.argmax(-1)).double().mean())


def rows_error(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> float:
    """`relative_error` over the rows of all prompts."""
    return relative_error(torch.cat(list(got)), torch.cat(list(want)))


def per_seed_errors(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> list[float]:
    """`relative_error` over all logits, one for each prompt."""
    return [relative_error(one, other) for one, other in zip(got, want, strict=True)]
