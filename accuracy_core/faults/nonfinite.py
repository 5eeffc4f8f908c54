"""NaN in one value of one module."""

from __future__ import annotations

import torch
from torch import nn

from accuracy_core.faults.fault import Fault, Removal, ResolvedFault
from accuracy_core.faults.mlp_output import MLP_TAPS, change_mlp
from accuracy_core.schemas import Phase


def inject_hf(model: nn.Module, fault: ResolvedFault) -> Removal:
    def spoil(value: torch.Tensor) -> torch.Tensor:
        spoiled = value.clone()
        spoiled[..., : int(fault.strength)] = float("nan")
        return spoiled

    return change_mlp(model, fault, spoil)


NAN_MODULE = Fault(
    name="nan-module",
    description="the first features of one layer's MLP output are NaN",
    default_layer=1,
    default_strength=1,
    unit="features",
    expected_phase=Phase.BOTH,
    expected_module="model.layers.{layer}.mlp",
    also=MLP_TAPS,
    level="tensors",
    inject_hf=inject_hf,
    takes_position=True,
)
