"""One MLP's output scaled: the smallest fault that every later layer, both phases and all positions feel."""

from __future__ import annotations

from torch import nn

from accuracy_core.faults.conditions import keeps_mlp_scale
from accuracy_core.faults.fault import Fault, Removal, ResolvedFault
from accuracy_core.faults.mlp_output import MLP_TAPS, change_mlp
from accuracy_core.schemas import Phase


def inject_hf(model: nn.Module, fault: ResolvedFault) -> Removal:
    return change_mlp(model, fault, lambda value: value * fault.strength)


MLP_SCALE = Fault(
    name="mlp-scale",
    description="the output of one layer's MLP is scaled",
    default_layer=1,
    default_strength=1.05,
    unit="factor",
    expected_phase=Phase.BOTH,
    expected_module="model.layers.{layer}.mlp",
    also=MLP_TAPS,
    level="tensors",
    inject_hf=inject_hf,
    obstacle=keeps_mlp_scale,
    takes_position=True,
)
