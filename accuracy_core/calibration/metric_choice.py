"""Which metric may gate: top-k agreement, or the relative error?"""

from __future__ import annotations

import torch
from pydantic import Field

from accuracy_core.calibration.material import Rows
from accuracy_core.calibration.relative_error import relative_error, top1_agreement
from accuracy_core.schemas.base import Part


class MetricChoice(Part):
    """How two metrics answer to the same noise. `flips`: share of rows whose argmax changed under it."""

    near_ties: float = Field(description="share of FP32 rows whose two largest logits are closer than the noise")
    flips: float
    relative_error: float
    use: str = "relative_error"


def metric_choice(fp32_rows: Rows, narrow_rows: Rows) -> MetricChoice:
    """Random weights give near-ties: the argmax flips on any noise, the relative error does not."""
    want, got = torch.cat(fp32_rows), torch.cat(narrow_rows)
    top = want.topk(2, -1).values
    noise = (got - want).abs().amax(-1)
    flips = 1 - top1_agreement(got, want)
    return MetricChoice(
        near_ties=float(((top[:, 0] - top[:, 1]) < 2 * noise).double().mean()),
        flips=flips,
        relative_error=relative_error(got, want),
    )
