"""Least-squares shift: softmax ignores a constant, so a constant must never count as an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from accuracy_core.numerics.scratch import Scratch, dot


@dataclass(frozen=True)
class Centred:
    """A reference row about its mean, computed once and used for every side compared with it.

    `values` (rows, vocab) is `ref - mean`, 0 in columns that do not count; `mean`, `variance`, `count` are (rows, 1).
    """

    values: torch.Tensor
    mean: torch.Tensor
    variance: torch.Tensor
    count: torch.Tensor


@dataclass(frozen=True)
class Shifted:
    """Sides `x` against one reference: `error` (sides, rows, vocab) = `x - ref - shift`, 0 in columns that do not
    count.

    (sides, rows, 1) each: `shift`; `excess`, the slope minus 1; `covariance` of ref and `x - ref`; `mean` and `square`,
    the sum of squares, of `error`.
    """

    error: torch.Tensor
    shift: torch.Tensor
    excess: torch.Tensor
    covariance: torch.Tensor
    mean: torch.Tensor
    square: torch.Tensor


def centre(ref: torch.Tensor, valid: torch.Tensor | None, scratch: Scratch) -> Centred:
    """Centre `ref` (rows, vocab) over the columns where `valid` (bool, same shape; None: all). `ref` is 0 elsewhere."""
    if valid is None:
        count = torch.full((ref.shape[0], 1), float(ref.shape[1]), dtype=ref.dtype, device=ref.device)
    else:
        count = valid.sum(-1, keepdim=True).to(ref.dtype).clamp(min=1)
    mean = ref.sum(-1, keepdim=True) / count
    values = torch.sub(ref, mean, out=scratch.take("first", ref))
    if valid is not None:
        values.masked_fill_(~valid, 0)
    return Centred(values, mean, _square(values) / count, count)


def remove_shift(
    ref: torch.Tensor, sides: Sequence[torch.Tensor], about: Centred, valid: torch.Tensor | None, scratch: Scratch
) -> Shifted:
    """Fit `x = slope * ref + c` per row of each side (rows, vocab) and take only the intercept `c` off `x - ref`.

    Ordinary least squares in closed form: `slope = cov(ref, x) / var(ref)`, `c = mean(x) - slope * mean(ref)`. Fitted
    on the difference (`slope - 1 = cov(ref, x - ref) / var(ref)`), which loses no digits when x is close to ref. A
    constant reference (`var = 0`) has slope 1, and the shift is the difference of the means.
    """
    error = scratch.take("errors", ref, (len(sides), *ref.shape))
    for i, x in enumerate(sides):
        torch.sub(x, ref, out=error[i])
    if valid is not None:
        error.masked_fill_(~valid, 0)
    mean = error.sum(-1, keepdim=True) / about.count
    covariance = dot(about.values, error, scratch) / about.count
    excess = torch.where(about.variance > 0, covariance / about.variance, 0.0)
    shift = mean - excess * about.mean
    error.sub_(shift)
    if valid is not None:
        error.masked_fill_(~valid, 0)
    return Shifted(error, shift, excess, covariance, mean - shift, _square(error))


@dataclass(frozen=True)
class Difference:
    """`t - e` without its shift is `values - shift`: (rows, vocab), (rows, 1)."""

    values: torch.Tensor
    shift: torch.Tensor


def between(s: Shifted, about: Centred, scratch: Scratch) -> Difference:
    """Side 0 (t) against side 1 (e), `t = slope * e + c`, from what is known of both against f.

    With `b`, `a` the errors of t and e and `d = b - a`: `cov(e, d) = cov(f, d) + cov(a, d)`, `var(e) = var(f) +
    2 cov(f, a) + var(a)`, and `2 a.d = |b|² - |a|² - |d|²`, so that one pass over d replaces the four of a new fit.
    """
    d = torch.sub(s.error[0], s.error[1], out=scratch.take("second", s.error[0]))
    mean = s.mean[0] - s.mean[1]
    along = (s.square[0] - s.square[1] - _square(d)) / (2 * about.count) - s.mean[1] * mean
    variance = about.variance + 2 * s.covariance[1] + s.square[1] / about.count - s.mean[1].square()
    covariance = s.covariance[0] - s.covariance[1] + along
    excess = torch.where(variance > 0, covariance / variance, 0.0)
    return Difference(d, mean - excess * (about.mean + s.shift[1] + s.mean[1]))


def _square(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).square()
