"""Limits of tensor comparison: `[extra.tensors]` of the tolerances, with their provenance there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch

from accuracy_core.errors import ConfigurationError
from accuracy_core.numerics.defaults import default_tolerances
from accuracy_core.schemas import Tolerances

#: what a tap's module does, as far as its rounding goes
TapKind = Literal["projection", "norm", "kernel", "experts"]
_KERNEL = ("query", "key", "value", "attn")


@dataclass(frozen=True)
class TensorLimits:
    """A local ratio is the target's local error over the reference's, which counts as at least `floor_ulps` units.

    `projection`, `norm`, `kernel`, `experts`: limit of the local L2 ratio over many positions, by kind of module. Over
    n positions it is `1 + 1/sqrt(n)` times that, of one position `row`, of one head `head`, of one head at one
    position `cell` times that. `scale`: limit of the common factor in each position's error, as a multiple of the
    reference's. `floor_ulps`, `scale_floor_ulps` and their `float32_` twins are in units of the dtype's spacing at 1
    (`finfo.eps`).
    """

    projection: float
    norm: float
    kernel: float
    experts: float
    row: float
    head: float
    cell: float
    scale: float
    scale_min_rows: int
    floor_ulps: float
    scale_floor_ulps: float
    float32_floor_ulps: float
    float32_scale_floor_ulps: float
    bc_min_samples: int
    depth_min_layers: int

    @classmethod
    def of(cls, tolerances: Tolerances | None = None) -> TensorLimits:
        """From a calibration's `extra["tensors"]`, completed by the bundled one. Raises ConfigurationError."""
        bundled = default_tolerances().extra.get("tensors")
        own = tolerances.extra.get("tensors") if tolerances is not None else None
        values: dict[str, Any] = {
            **(bundled if isinstance(bundled, Mapping) else {}),
            **(own if isinstance(own, Mapping) else {}),
        }
        names = {item.name for item in fields(cls)}
        if set(values) != names or not all(isinstance(value, int | float) for value in values.values()):
            odd = ", ".join(sorted(set(values) ^ names)) or "a value that is no number"
            raise ConfigurationError(f"tolerances: extra.tensors is not usable: {odd}")
        return cls(**values)

    def floor(self, dtype: torch.dtype) -> float:
        """Relative L2 error below which the reference's own is not believed."""
        ulps = self.float32_floor_ulps if dtype is torch.float32 else self.floor_ulps
        return ulps * torch.finfo(dtype).eps

    def scale_floor(self, dtype: torch.dtype) -> float:
        ulps = self.float32_scale_floor_ulps if dtype is torch.float32 else self.scale_floor_ulps
        return ulps * torch.finfo(dtype).eps


def kind_of(tap: str) -> TapKind:
    """Kind of a canonical tap."""
    name = tap.rpartition(".")[2]
    if name in _KERNEL:
        return "kernel"
    if name == "experts":
        return "experts"
    if "norm" in name or name.startswith("ln_"):
        return "norm"
    return "projection"
