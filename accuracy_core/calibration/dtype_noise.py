"""What the target's dtype costs against FP32, for every legitimate variant and over the depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from accuracy_core.calibration.material import Ids, depths, forward_rows, truncated
from accuracy_core.calibration.relative_error import error_table, top1_agreement
from accuracy_core.calibration.variants import VARIANTS
from accuracy_core.schemas.base import Part


class DtypeNoise(Part):
    """One legitimate variant at one depth against FP32: relative error over the largest k logits, and agreement."""

    variant: str
    depth: int
    errors: dict[str, float]
    top1: float


def dtype_noise(
    fp32: Any, narrow: Any, ids: Sequence[Ids], rows: int, variants: Sequence[str] | None = None
) -> list[DtypeNoise]:
    """Every variant at every depth. Both models are one checkpoint, FP32 and the target's dtype."""
    names = list(VARIANTS) if variants is None else list(variants)
    found = []
    for depth in depths(fp32.config.get_text_config().num_hidden_layers):
        with truncated(fp32, depth), truncated(narrow, depth):
            reference = torch.cat(forward_rows(fp32, ids, rows))
            for name in names:
                got = torch.cat(VARIANTS[name].run(narrow, ids, rows))
                found.append(
                    DtypeNoise(
                        variant=name,
                        depth=depth,
                        errors=error_table(got, reference),
                        top1=top1_agreement(got, reference),
                    )
                )
    return found
