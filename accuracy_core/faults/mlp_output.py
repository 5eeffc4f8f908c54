"""Changing what a feed-forward block returns, from a position on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from accuracy_core.faults.fault import Removal, ResolvedFault
from accuracy_core.faults.layers import MLP_NAMES, child, decoder_layer, first_of, positions_of, together, with_first

#: the block's own last operation, where the block is not tapped itself
MLP_TAPS = ("model.layers.{layer}.mlp.down_proj", "model.layers.{layer}.mlp.experts")


def change_mlp(model: nn.Module, fault: ResolvedFault, change: Callable[[torch.Tensor], torch.Tensor]) -> Removal:
    """Let the MLP of layer `fault.layer` return `change(output)` for positions >= `fault.position`.

    The output is (batch, tokens, width) or, in some blocks with experts, (tokens, width).
    """
    layer = decoder_layer(model, fault.layer or 0)
    seen: dict[str, Any] = {}

    def remember(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        seen["positions"] = positions_of(kwargs)

    def apply(module: nn.Module, args: Any, output: Any) -> Any:
        value = first_of(output)
        changed = change(value)
        if fault.position and seen.get("positions") is not None:
            affected = (seen["positions"] >= fault.position).reshape(*value.shape[:-1], 1)
            changed = torch.where(affected, changed, value)
        return with_first(output, changed)

    handles = [
        layer.register_forward_pre_hook(remember, with_kwargs=True),
        child(layer, MLP_NAMES).register_forward_hook(apply),
    ]
    return together(handle.remove for handle in handles)
