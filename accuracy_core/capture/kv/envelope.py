"""How far the reference in the target's dtype is from FP32, over a whole run."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from accuracy_core.capture.kv.limits import KvLimits
from accuracy_core.capture.kv.rows import KvRows
from accuracy_core.capture.kv.sides import Which
from accuracy_core.numerics import l2_floor, linf_floor


@dataclass(frozen=True)
class Noise:
    """Size of the error that the format explains. `bits`: stored mantissa bits; `share`: relative floor beyond them."""

    bits: int
    share: float = 0.0

    @classmethod
    def of(cls, dtype: str, bits: int, limits: KvLimits) -> Noise:
        """A float32 target has no reference with its own noise: what equally right float32 kernels differ by is it."""
        return cls(bits, limits.float32_noise if dtype == "float32" else 0.0)

    def l2(self, rows: KvRows) -> torch.Tensor:
        """(heads, positions): the reference's L2 error, floored."""
        return torch.maximum(rows.base_l2, self._floor(rows.ref_l2, l2_floor(rows.ref_l2, self.bits)))

    def linf(self, rows: KvRows) -> torch.Tensor:
        """(heads, positions): the reference's largest error, floored."""
        return torch.maximum(rows.base_linf, self._floor(rows.ref_linf, linf_floor(rows.ref_linf, self.bits)))

    def _floor(self, size: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
        return torch.maximum(floor, size * self.share)


@dataclass
class BaseEnvelope:
    """Largest relative L2 error of the reference per layer and side, over the prompts that were added.

    The noise of a narrow format jumps where one rounding tips a large activation or a router's choice; reference and
    target take such jumps at different positions, so a row is only beyond noise when the reference makes no error of
    that size anywhere in the run.
    """

    largest: dict[tuple[int, Which], float] = field(default_factory=dict)

    def add(self, layer: int, which: Which, rows: KvRows, noise: Noise) -> float:
        """Take in one prompt's rows; the largest so far."""
        relative = noise.l2(rows) / rows.ref_l2
        relative = relative[relative.isfinite()]
        seen = float(relative.max()) if len(relative) else 0.0
        key = (layer, which)
        self.largest[key] = max(self.largest.get(key, 0.0), seen)
        return self.largest[key]
