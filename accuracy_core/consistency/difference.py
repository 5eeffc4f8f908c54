"""How far two answers of one engine are apart, row by row, and how large the dtype's own noise is there."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from accuracy_core.numerics.norms import l2_floor


@dataclass(frozen=True)
class Difference:
    """Answer `b` against answer `a`.

    `size` and `relative` are float64 (rows,): `||b - a||` and `||b - a|| / ||a||`, both without the constant part of a
    row, since softmax ignores a constant. A row that cannot be compared (`broken`, bool (rows,)) is infinitely far off:
    NaN or +inf on either side, -inf on one side only, or missing on one side.
    """

    size: torch.Tensor
    relative: torch.Tensor
    broken: torch.Tensor
    bit_equal: bool


def difference(a: torch.Tensor, b: torch.Tensor) -> Difference:
    """`a`, `b`: float (tokens, vocab) of the same request; a side with fewer tokens breaks the rows that it lacks.

    A side that is wider has its further columns compared with nothing, so they break every row unless masked with -inf.
    """
    rows, common = max(len(a), len(b)), min(len(a), len(b))
    size = torch.full((rows,), torch.inf, dtype=torch.float64)
    relative, broken = size.clone(), torch.ones(rows, dtype=torch.bool)
    width = max(a.shape[1], b.shape[1])
    left, right = _widened(a[:common], width), _widened(b[:common], width)
    valid = torch.isfinite(left) & torch.isfinite(right)
    masked = (left == -torch.inf) & (right == -torch.inf)
    broken[:common] = ~(valid | masked).all(-1) | ~valid.any(-1)
    apart = _norm(right - left, valid)
    scale = _norm(left, valid)
    size[:common] = torch.where(broken[:common], torch.inf, apart)
    relative[:common] = torch.where(broken[:common], torch.inf, torch.where(apart == 0, 0.0, apart / scale))
    return Difference(size, relative, broken, bit_equal=torch.equal(a, b))


def error_size(x: torch.Tensor, fp32: torch.Tensor) -> torch.Tensor:
    """`||x - fp32||` without the constant part, float64 (rows,), over the columns that are finite on both sides.

    `x`, `fp32`: (tokens, vocab); columns and rows beyond the narrower side are left out. A NaN stays one.
    """
    rows, width = min(len(x), len(fp32)), min(x.shape[1], fp32.shape[1])
    left, right = x[:rows, :width].double(), fp32[:rows, :width].double()
    valid = torch.isfinite(left) & torch.isfinite(right)
    found = _norm(left - right, valid)
    return torch.where(torch.isnan(left).any(-1), torch.nan, found)


def noise_size(expected: torch.Tensor, fp32: torch.Tensor, bits: int) -> torch.Tensor:
    """`||expected - fp32||` without the constant part, float64 (rows,): the noise of a dtype with `bits` stored
    mantissa bits, at least one rounding of every logit (see `numerics.l2_floor`)."""
    rows, width = min(len(expected), len(fp32)), min(expected.shape[1], fp32.shape[1])
    reference = fp32[:rows, :width].double()
    floor = l2_floor(_norm(reference, torch.isfinite(reference)), bits)
    return torch.maximum(error_size(expected, fp32), floor)


def _norm(x: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """L2 norm per row of `x` (rows, columns) about its mean, over the columns where `valid`; 0 where there is none."""
    x = torch.where(valid, x, 0.0)
    mean = x.sum(-1, keepdim=True) / valid.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(valid, x - mean, 0.0).norm(dim=-1)


def _widened(x: torch.Tensor, width: int) -> torch.Tensor:
    """`x` as float64, columns that it lacks masked."""
    return torch.nn.functional.pad(x.double(), (0, width - x.shape[1]), value=-torch.inf)
