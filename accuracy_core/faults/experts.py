"""Faults of the router in a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from accuracy_core.faults.conditions import expert_layers, renormalises_experts
from accuracy_core.faults.fault import Fault, Removal, ResolvedFault
from accuracy_core.faults.layers import MLP_NAMES, ROUTER_NAMES, child, decoder_layer, replace_forward
from accuracy_core.schemas import Phase

#: `change(logits (tokens, experts), weights (tokens, k), chosen (tokens, k))` -> new weights
WeightChange = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _change_weights(model: nn.Module, fault: ResolvedFault, change: WeightChange) -> Removal:
    router = child(child(decoder_layer(model, fault.layer or 0), MLP_NAMES), ROUTER_NAMES)

    def make(right: Callable[..., Any]) -> Callable[..., Any]:
        def forward(hidden: torch.Tensor) -> Any:
            logits, weights, chosen = right(hidden)
            return logits, change(logits, weights, chosen).to(weights.dtype), chosen

        return forward

    return replace_forward(router, make)


def not_renormalised(logits: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Probabilities over all experts, of which the chosen ones do not sum to 1."""
    return logits.float().softmax(-1).gather(-1, chosen)


def reversed_order(logits: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """The best expert gets the weight of the last chosen one, and so on."""
    return weights.flip(-1)


_SHOWS: dict[str, Any] = {
    "default_layer": 1, "default_strength": 1, "unit": "on or off", "expected_phase": Phase.BOTH, "level": "tensors",
    "expected_module": "model.layers.{layer}.mlp.experts", "also": ("model.layers.{layer}.mlp",),
    "layers": expert_layers,
}  # fmt: skip

MOE_TOP_K = Fault(
    name="moe-topk-not-renormalised",
    description="the weights of the chosen experts of one layer are not renormalised to sum to 1",
    inject_hf=lambda model, fault: _change_weights(model, fault, not_renormalised),
    obstacle=renormalises_experts,
    **_SHOWS,
)
ROUTER_ORDER = Fault(
    name="router-order",
    description="the weights of the chosen experts of one layer go to the wrong ones of them",
    inject_hf=lambda model, fault: _change_weights(model, fault, reversed_order),
    **_SHOWS,
)
