"""Does a tensor's error read all of its elements, or a handful? And can its scales be written down exactly?"""

from __future__ import annotations

import math

import torch
from pydantic import Field

from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas.base import Part

#: share of the elements that are looked at for energy, and elements in a block
TOP_SHARE = 0.001
BLOCK = 128
#: share of the energy from which on a metric reads a handful of elements (healthy: .01 to .16)
MOST_ENERGY = 0.30


class SpanAudit(Part):
    """One tensor. `energy_top`: share of the sum of squares in its largest 0.1 % of elements."""

    elements: int
    energy_top: float
    largest_share: float = Field(description="share of the energy in the 8 largest elements")
    absmax_over_rms: float = Field(description="mean over blocks of 128; about 3.2 for a Gaussian")
    underflow: int = Field(description="elements that are not 0 and become 0 in bfloat16's smallest normal range")
    problems: list[str] = Field(default_factory=list)


def span_audit(tensor: torch.Tensor, *, block: int = BLOCK) -> SpanAudit:
    """Audit of one tensor of any shape. Raises ConfigurationError for an empty one, or one that is not finite."""
    values = tensor.detach().double().flatten()
    if not values.numel():
        raise ConfigurationError("an empty tensor has no span")
    if not bool(torch.isfinite(values).all()):
        raise ConfigurationError("the tensor holds NaN or infinity", fix="check the generator of the fixture")
    squares = values.square().sort(descending=True).values
    total = float(squares.sum())
    count = max(1, math.ceil(TOP_SHARE * len(squares)))
    share = float(squares[:count].sum()) / total if total else 0.0
    eight = float(squares[:8].sum()) / total if total else 0.0
    tiny = int(((values != 0) & (values.abs() < torch.finfo(torch.bfloat16).tiny)).sum())
    problems = []
    if share > MOST_ENERGY:
        problems.append(
            f"{share:.0%} of the energy lies in the largest {TOP_SHARE:.1%} of the elements: a relative error reads "
            "only those"
        )
    if len(values) > 8 * BLOCK and eight > MOST_ENERGY:
        problems.append(f"8 of {len(values)} elements carry {eight:.0%} of the energy")
    return SpanAudit(
        elements=len(values),
        energy_top=share,
        largest_share=eight,
        absmax_over_rms=_absmax_over_rms(values, block),
        underflow=tiny,
        problems=problems,
    )


def representable(scale: torch.Tensor) -> bool:
    """Whether every value is exact in bfloat16 and in float16: then carrying it in either changes nothing."""
    wide = scale.double()
    return all(bool(torch.equal(wide, wide.to(dtype).double())) for dtype in (torch.bfloat16, torch.float16))


def _absmax_over_rms(values: torch.Tensor, block: int) -> float:
    whole = len(values) // block * block
    blocks = values[:whole].view(-1, block) if whole else values[None]
    rms = blocks.square().mean(-1).sqrt()
    ratio = blocks.abs().amax(-1)[rms > 0] / rms[rms > 0]
    return float(ratio.mean()) if len(ratio) else math.nan
