"""Kullback-Leibler divergence of next-token distributions, the scale other tools publish."""

from __future__ import annotations

import math

import torch

from accuracy_core.numerics.scratch import Scratch, dot

_EXP_SAFE = 40.0  # larger errors go through log-sum-exp: exp would leave float32's range
_LOG2_E = 1 / math.log(2)


def kl_divergence(
    ref: torch.Tensor,
    ref_max: torch.Tensor,
    error: torch.Tensor,
    *,
    error_max: torch.Tensor | None = None,
    scratch: Scratch | None = None,
) -> torch.Tensor:
    """`KL(softmax(ref) || softmax(ref + error))` in nats, per row: (rows,) float64.

    `ref` (rows, vocab) is -inf where a column does not count; `ref_max` (rows, 1) its maxima; `error` (rows, vocab) is
    finite, a constant in it cancels, `error_max` (rows,) its largest magnitudes, if known. With `p = softmax(ref)` the
    divergence is `log E_p[exp(error)] - E_p[error]`, good to about 1e-7 in float32: the difference of two log-sum-exps
    of logits would be good to 1e-6 times their size. (exp2 is twice as fast as exp.)
    """
    scratch = scratch or Scratch()
    p = torch.add(ref_max * -_LOG2_E, ref, alpha=_LOG2_E, out=scratch.take("first", ref)).exp2_()
    total = p.sum(-1, keepdim=True).double()
    expected = dot(p, error, scratch) / total
    largest = error.abs().amax(-1) if error_max is None else error_max
    if not bool((largest < _EXP_SAFE).all()):
        return (torch.logsumexp(p.double().log_() + error, -1, keepdim=True) - total.log() - expected).squeeze(-1)
    growth = torch.mul(error, _LOG2_E, out=scratch.take("second", error)).exp2_().sub_(1)  # exp - 1: keeps digits
    return (torch.log1p(dot(p, growth, scratch) / total) - expected).squeeze(-1).clamp(min=0)
