"""One MLP's output scaled: the smallest fault that every later layer, both phases and all positions feel."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from accuracy_core.faults.fault import Fault, Removal, ResolvedFault
from accuracy_core.faults.layers import MLP_NAMES, child, decoder_layer, positions_of
from accuracy_core.schemas import Phase


def inject_hf(model: nn.Module, fault: ResolvedFault) -> Removal:
    layer = decoder_layer(model, fault.layer or 0)
    seen: dict[str, Any] = {}

    def remember(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        seen["positions"] = positions_of(kwargs)

    def scale(module: nn.Module, args: Any, output: Any) -> Any:
        first = output[0] if isinstance(output, tuple) else output
        scaled = first * fault.strength
        if fault.position and seen.get("positions") is not None:
            scaled = torch.where((seen["positions"] >= fault.position).unsqueeze(-1), scaled, first)
        return (scaled, *output[1:]) if isinstance(output, tuple) else scaled

    handles = [
        layer.register_forward_pre_hook(remember, with_kwargs=True),
        child(layer, MLP_NAMES).register_forward_hook(scale),
    ]

    def remove() -> None:
        for handle in handles:
            handle.remove()

    return remove


MLP_SCALE = Fault(
    name="mlp-scale",
    description="the output of one layer's MLP is scaled",
    default_layer=1,
    default_strength=1.05,
    unit="factor",
    expected_phase=Phase.BOTH,
    expected_module="model.layers.{layer}.mlp",
    level="tensors",
    inject_hf=inject_hf,
)
