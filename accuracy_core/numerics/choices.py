"""Which token each side picks, and how far apart the picks are."""

from __future__ import annotations

import torch

from accuracy_core.numerics.sweep import Sweep


def choose(
    s: Sweep, f: torch.Tensor, t: torch.Tensor, padding: torch.Tensor | None, sampled: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """Columns of the row table about choices, (rows,) each.

    `f`, `t` (rows, vocab): reference and target logits, `padding` (rows, more columns) what the target has beyond the
    vocabulary; `sampled` (rows,) the target's ids, None: its argmax, padding included. With `g = argmax f`, `g' =
    argmax e` and `c` the target's choice: `divergence_gap = |t_c - t_g'|` and `divergence_size`, the larger of the two
    magnitudes without the target's shift (a constant must not widen a rounding step); `flip_gap = f_g - f_c` and
    `flip_size` likewise. Gaps are 0 where the choices agree, infinite where the reference masks c or the target is not
    finite.
    """
    vocab = t.shape[1]
    reference, expected, argmax = s.reference_ids[:, 0], s.expected_ids[:, 0], s.target_ids[:, 0]
    if padding is not None:
        best, at = padding.float().nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).max(-1)
        argmax = torch.where(best > s.target_values[:, 0], at + vocab, argmax)
    c = argmax if sampled is None else sampled
    t_c, t_g = _value(t, padding, c), _value(t, None, expected)
    f_g = s.reference_values[:, 0]
    f_c = torch.where(c < vocab, _value(f, None, c.clamp(max=vocab - 1)), -torch.inf)
    gap = (t_c - t_g).abs().nan_to_num(nan=torch.inf)
    none = torch.full_like(c, -1)
    return {
        "reference_id": reference,
        "expected_id": expected,
        "target_id": c,
        "target_argmax": argmax,
        "divergence_gap": torch.where(c == expected, 0.0, gap),
        "divergence_size": torch.maximum((t_c - s.expected_shift).abs(), (t_g - s.expected_shift).abs()),
        "flip_gap": torch.where(c == reference, 0.0, f_g - f_c),
        "flip_size": torch.where(f_c.isfinite(), torch.maximum(f_g.abs(), f_c.abs()), f_g.abs()),
        "padding_id": torch.where(c >= vocab, c, torch.where(argmax >= vocab, argmax, none)),
    }


def _value(x: torch.Tensor, padding: torch.Tensor | None, ids: torch.Tensor) -> torch.Tensor:
    """`x` at one id per row, (rows,) float64; ids beyond its columns are looked up in `padding`."""
    n = x.shape[1]
    value = x.gather(-1, ids.clamp(max=n - 1).unsqueeze(-1).to(x.device)).squeeze(-1).double().to(ids.device)
    if padding is None:
        return value
    beyond = padding.gather(-1, (ids - n).clamp(min=0).unsqueeze(-1).to(padding.device)).squeeze(-1).double()
    return torch.where(ids < n, value, beyond)
