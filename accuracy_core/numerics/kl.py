"""Kullback-Leibler divergence of next-token distributions, the scale other tools publish."""

from __future__ import annotations

import torch

_EXP_SAFE = 60.0  # exp of more than this may overflow float32 once summed


def kl_divergence(ref: torch.Tensor, ref_max: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    """`KL(softmax(ref) || softmax(ref + error))` in nats, per row: (rows,).

    `ref` (rows, vocab) is -inf where a column does not count; `ref_max` (rows, 1) its maxima; `error` (rows, vocab) is
    finite, and a constant in it cancels. With `p = softmax(ref)` and `d = error - E_p[error]` the divergence is
    `log E_p[exp(d)]`: the difference of two log-sum-exps would lose a value of 1e-6 in rounding, this keeps 1e-8.
    """
    p = torch.sub(ref, ref_max).exp_()
    total = p.sum(-1, keepdim=True)
    centre = (p * error).sum(-1, keepdim=True) / total
    d = torch.sub(error, centre)
    if float(d.max()) > _EXP_SAFE:
        log_p = p.double().log_() - total.double().log()
        return torch.logsumexp(log_p + d, -1).clamp(min=0).to(ref.dtype)
    growth = d.exp_().sub_(1)
    return torch.log1p(p.mul_(growth).sum(-1) / total.squeeze(-1)).clamp(min=0)
