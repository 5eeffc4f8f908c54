"""Kullback-Leibler divergence of next-token distributions, the scale other tools publish."""

from __future__ import annotations

import math

import torch

from accuracy_core.numerics.scratch import Scratch, dot

_EXP_SAFE = 40.0  # larger errors go through log-sum-exp: exp would leave float32's range
_LOG2_E = 1 / math.log(2)


def kl_divergence(
    ref: torch.Tensor, ref_max: torch.Tensor, error: torch.Tensor, scratch: Scratch | None = None
) -> torch.Tensor:
    """`KL(softmax(ref) || softmax(ref + error))` in nats, per row: (rows,) float64.

    `ref` (rows, vocab) is -inf where a column does not count; `ref_max` (rows, 1) its maxima; `error` (rows, vocab) is
    finite, and a constant in it cancels. With `p = softmax(ref)` the divergence is `log E_p[exp(error)] - E_p[error]`:
    unlike the difference of two log-sum-exps it keeps values of 1e-7. (exp2 is twice as fast as exp.)
    """
    scratch = scratch or Scratch()
    p = torch.sub(ref, ref_max, out=scratch.like("first", ref)).mul_(_LOG2_E).exp2_()
    total = p.sum(-1, keepdim=True).double()
    expected = dot(p, error, scratch) / total
    if not bool((error.amax(-1) < _EXP_SAFE).all()):
        return (torch.logsumexp(p.double().log_() + error, -1, keepdim=True) - total.log() - expected).squeeze(-1)
    growth = torch.mul(error, _LOG2_E, out=scratch.like("second", error)).exp2_().sub_(1)
    kl = torch.log1p(dot(p, growth, scratch) / total) - expected
    return kl.squeeze(-1).clamp(min=0)
