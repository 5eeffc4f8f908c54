"""Record and replace: what the reference's modules make of the target's own tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from accuracy_core.capture.hf_taps import HfTaps, available_taps
from accuracy_core.capture.rows import TapValue
from accuracy_core.capture.unrounded import norms_of_sums
from accuracy_core.errors import InputMismatchError


@torch.inference_mode()
def record_local(
    model: Any, token_ids: Sequence[int], target: Mapping[str, torch.Tensor], also: Iterable[str] = ()
) -> dict[str, torch.Tensor]:
    """One forward of a reference model in which every tapped value is recorded, then replaced by the target's.

    So the value recorded at a tap is what the reference's module makes of the target's values before it: whatever went
    wrong earlier is the same on both sides. `token_ids` are the positions of the target's rows: prompt and forced
    tokens without the last. `target`: canonical tap -> (positions, features), or fewer rows, which are then the last
    positions; taps that the model lacks are ignored. `also`: taps to record although the target has nothing that fits.
    Target values that are not finite are not put in place. A reference wider than the target takes norms of the
    residual sum as it was before the target rounded it, where that is known (see `capture.unrounded`).

    Returns tap -> (positions, features) in the model's dtype, in the order of execution. Raises InputMismatchError,
    naming both shapes, where a tensor of the target does not fit the model.
    """
    known = set(available_taps(model))
    positions = len(token_ids)
    values = {}
    for tap, rows in target.items():
        if tap not in known:
            continue
        if rows.ndim != 2 or rows.shape[0] > positions:
            raise InputMismatchError(f"{tap}: target has shape {tuple(rows.shape)} for {positions} positions")
        values[tap] = TapValue(rows, first_row=positions - rows.shape[0])
    if next(model.parameters()).dtype is torch.float64 and hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # grouped products know no float64
    recorded = dict.fromkeys([*values, *(tap for tap in also if tap in known)])
    with HfTaps(model, list(recorded), replace=values) as taps:
        model(input_ids=torch.tensor([list(token_ids)]), use_cache=False)
        found = taps.collect()
    return found | norms_of_sums(model, list(found), target, positions)
