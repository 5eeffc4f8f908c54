"""Least-squares shift: softmax ignores a constant, so a constant must never count as an error."""

from __future__ import annotations

from dataclasses import dataclass

import torch


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
    """Errors of one side. `error` (rows, vocab) = `x - ref - shift`; `shift`, `slope`, `mean` (rows,).

    `mean` is the mean of `x - ref` before the shift was removed.
    """

    error: torch.Tensor
    shift: torch.Tensor
    slope: torch.Tensor
    mean: torch.Tensor


def centre(ref: torch.Tensor, valid: torch.Tensor | None = None) -> Centred:
    """Centre `ref` (rows, vocab) over the columns where `valid` (bool, same shape; None: all)."""
    if valid is None:
        count = torch.full((ref.shape[0], 1), float(ref.shape[1]), dtype=ref.dtype, device=ref.device)
        mean = ref.mean(-1, keepdim=True)
        values = ref - mean
    else:
        count = valid.sum(-1, keepdim=True).to(ref.dtype)
        mean = ref.masked_fill(~valid, 0).sum(-1, keepdim=True) / count
        values = (ref - mean).masked_fill_(~valid, 0)
    variance = torch.linalg.vector_norm(values, dim=-1, keepdim=True).square() / count
    return Centred(values, mean, variance, count)


def remove_shift(ref: torch.Tensor, x: torch.Tensor, about: Centred, valid: torch.Tensor | None = None) -> Shifted:
    """Fit `x = slope * ref + c` per row and take only the intercept `c` off `x - ref`.

    Ordinary least squares in closed form: `slope = cov(ref, x) / var(ref)`, `c = mean(x) - slope * mean(ref)`. Fitted
    on the difference (`slope - 1 = cov(ref, x - ref) / var(ref)`), which loses no digits when x is close to ref. A
    constant reference (`var = 0`) has slope 1, and the shift is the difference of the means.
    """
    error = x - ref
    if valid is not None:
        error.masked_fill_(~valid, 0)
    mean = error.sum(-1, keepdim=True) / about.count
    covariance = (about.values * error).sum(-1, keepdim=True) / about.count
    excess = torch.where(about.variance > 0, covariance / about.variance, 0.0)
    shift = mean - excess * about.mean
    error.sub_(shift)
    if valid is not None:
        error.masked_fill_(~valid, 0)
    return Shifted(error, shift.squeeze(-1), 1 + excess.squeeze(-1), mean.squeeze(-1))
