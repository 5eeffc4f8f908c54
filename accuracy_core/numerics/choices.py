"""Which token each side picks, and how far apart the picks are."""

from __future__ import annotations

import torch

from accuracy_core.numerics.leaders import Leaders


def choose(
    t: torch.Tensor,
    padding: torch.Tensor | None,
    f: torch.Tensor,
    sampled: torch.Tensor | None,
    expected: Leaders,
    reference: Leaders,
    target: Leaders,
    shift: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """Columns of the row table about choices, (rows,) each.

    `t`, `f` (rows, vocab): target and reference logits, `padding` (rows, more columns) what the target has beyond the
    vocabulary; `sampled` (rows,) the target's ids, None: its argmax, padding included; `shift` (rows,) of the target
    against e. With `g = argmax f`, `g' = argmax e` and `s` the target's choice: `divergence_gap = |t_s - t_g'|` and
    `divergence_size`, the larger of the two magnitudes without the shift (a constant must not widen a rounding step);
    `flip_gap = f_g - f_s` and `flip_size` likewise. Gaps are 0 where the choices agree, infinite where the reference
    masks s or the target is not finite.
    """
    vocab = t.shape[1]
    argmax = target.argmax
    if padding is not None:
        best, at = padding.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).max(-1)
        argmax = torch.where(best > target.values[:, 0], at + vocab, argmax)
    s = argmax if sampled is None else sampled
    t_s, t_g = _value(t, padding, s), _value(t, None, expected.argmax)
    f_g = reference.values[:, 0]
    f_s = torch.where(s < vocab, _value(f, None, s.clamp(max=vocab - 1)), -torch.inf)
    gap = (t_s - t_g).abs().nan_to_num(nan=torch.inf)
    none = torch.full_like(s, -1)
    return {
        "reference_id": reference.argmax,
        "expected_id": expected.argmax,
        "target_id": s,
        "target_argmax": argmax,
        "divergence_gap": torch.where(s == expected.argmax, 0.0, gap),
        "divergence_size": torch.maximum((t_s - shift).abs(), (t_g - shift).abs()),
        "flip_gap": torch.where(s == reference.argmax, 0.0, f_g - f_s),
        "flip_size": torch.where(f_s.isfinite(), torch.maximum(f_g.abs(), f_s.abs()), f_g.abs()),
        "padding_id": torch.where(s >= vocab, s, torch.where(argmax >= vocab, argmax, none)),
    }


def _value(x: torch.Tensor, padding: torch.Tensor | None, ids: torch.Tensor) -> torch.Tensor:
    """`x` at one id per row; ids beyond its columns are looked up in `padding`."""
    n = x.shape[1]
    value = x.gather(-1, ids.clamp(max=n - 1).unsqueeze(-1)).squeeze(-1)
    if padding is None:
        return value
    return torch.where(ids < n, value, padding.gather(-1, (ids - n).clamp(min=0).unsqueeze(-1)).squeeze(-1))
