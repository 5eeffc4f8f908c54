"""What is kept of a row once its logits are gone: a table of columns over rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch


@dataclass(frozen=True)
class RowStats:
    """One entry per row, all float64 or int64 on the CPU; a three-way column is NaN in two-way mode.

    `f` stands for the baseline (FP32), or for the expected logits in two-way mode; `e` for the expected logits; `t` for
    the target; `g` for argmax f, `s` for the target's choice.
    """

    prompt: torch.Tensor
    batch: torch.Tensor
    token: torch.Tensor
    count: torch.Tensor  # vocabulary columns that are compared
    topk: torch.Tensor  # (rows, slices)
    ref_linf: torch.Tensor  # max |f|
    ref_l2: torch.Tensor  # ||f||
    linf: torch.Tensor  # max |t - f|, shift removed; infinite where the target is not finite
    l2: torch.Tensor  # ||t - f||
    base_linf: torch.Tensor  # max |e - f|
    base_l2: torch.Tensor  # ||e - f||
    shift: torch.Tensor
    slope: torch.Tensor
    base_slope: torch.Tensor
    bias: torch.Tensor
    lean: torch.Tensor  # the bias without the constant's part
    base_lean: torch.Tensor
    bc: torch.Tensor
    kl: torch.Tensor
    top5_overlap: torch.Tensor
    reference_id: torch.Tensor
    expected_id: torch.Tensor
    target_id: torch.Tensor
    target_argmax: torch.Tensor
    divergence_gap: torch.Tensor  # |t_s - t_g'|, g' = argmax e
    divergence_size: torch.Tensor  # max(|t_s|, |t_g'|)
    flip_gap: torch.Tensor  # f_g - f_s
    flip_size: torch.Tensor  # max(|f_g|, |f_s|)
    winner_error: torch.Tensor  # |t - f| at g, shift removed
    winner_size: torch.Tensor  # |f_g|
    expected_top2: torch.Tensor  # (rows, 2)
    target_top2: torch.Tensor  # (rows, 2)
    non_finite: torch.Tensor  # columns NaN or +inf in the target, finite in the reference
    mask_differs: torch.Tensor  # columns masked (-inf) on one side only
    padding_id: torch.Tensor  # the id beyond the vocabulary that won, else -1

    def __len__(self) -> int:
        return int(self.prompt.shape[0])

    def take(self, rows: torch.Tensor) -> RowStats:
        """The rows selected by a bool mask or by positions."""
        return RowStats(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


def concatenate(parts: Sequence[RowStats]) -> RowStats:
    """One table from several, in order."""
    return RowStats(**{f.name: torch.cat([getattr(p, f.name) for p in parts]) for f in fields(RowStats)})
