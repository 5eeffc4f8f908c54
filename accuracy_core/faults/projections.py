"""Faults of linear layers and what stands around them: biases, swapped halves, missing shards, skipped norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from accuracy_core.faults.conditions import dense_layers, has_qk_norm, has_qkv_bias
from accuracy_core.faults.fault import Fault, Removal, ResolvedFault
from accuracy_core.faults.layers import (
    MLP_NAMES,
    OUTPUT_NAMES,
    attention_of,
    child,
    decoder_layer,
    replace_forward,
    together,
)
from accuracy_core.schemas import Phase

_QKV = ("q_proj", "k_proj", "v_proj")


def inject_no_bias(model: nn.Module, fault: ResolvedFault) -> Removal:
    """Query, key and value projections of the layer without their biases."""
    attention = attention_of(model, fault.layer or 0)

    def without(linear: Any) -> Removal:
        before = linear.bias
        linear.bias = None

        def remove() -> None:
            linear.bias = before

        return remove

    return together(without(getattr(attention, name)) for name in _QKV)


def inject_swapped_halves(model: nn.Module, fault: ResolvedFault) -> Removal:
    """Each of the two projections computes what the other should."""
    mlp: Any = child(decoder_layer(model, fault.layer or 0), MLP_NAMES)
    gate, up = mlp.gate_proj.forward, mlp.up_proj.forward
    return together([replace_forward(mlp.gate_proj, lambda _: up), replace_forward(mlp.up_proj, lambda _: gate)])


def inject_missing_rank(model: nn.Module, fault: ResolvedFault) -> Removal:
    """The attention's output projection without the share of the last of `strength` tensor-parallel ranks.

    A row-parallel linear splits its input features over the ranks and sums their outputs; a lost summand is as if that
    rank's features were zero.
    """
    projection = child(attention_of(model, fault.layer or 0), OUTPUT_NAMES)
    ranks = int(fault.strength)

    def make(right: Callable[..., Any]) -> Callable[..., Any]:
        def forward(x: torch.Tensor) -> Any:
            partial = x.clone()
            partial[..., x.shape[-1] - x.shape[-1] // ranks :] = 0
            return right(partial)

        return forward

    return replace_forward(projection, make)


def inject_no_qk_norm(model: nn.Module, fault: ResolvedFault) -> Removal:
    attention = attention_of(model, fault.layer or 0)
    norms = [getattr(attention, name) for name in ("q_norm", "k_norm")]
    return together(replace_forward(norm, lambda _: lambda x: x) for norm in norms)


QKV_BIAS = Fault(
    name="qkv-bias-dropped",
    description="the biases of one layer's query, key and value projections are left out",
    default_layer=1,
    default_strength=1,
    unit="on or off",
    expected_phase=Phase.BOTH,
    expected_module="model.layers.{layer}.self_attn.q_proj",
    also=(
        "model.layers.{layer}.self_attn.k_proj",
        "model.layers.{layer}.self_attn.v_proj",
        "model.layers.{layer}.self_attn.query",
    ),
    level="tensors",
    inject_hf=inject_no_bias,
    obstacle=has_qkv_bias,
)
GATE_UP_SWAPPED = Fault(
    name="gate-up-swapped",
    description="the gate and up projections of one layer's MLP are swapped",
    default_layer=1,
    default_strength=1,
    unit="on or off",
    expected_phase=Phase.BOTH,
    expected_module="model.layers.{layer}.mlp.gate_proj",
    also=("model.layers.{layer}.mlp.up_proj", "model.layers.{layer}.mlp.act"),
    level="tensors",
    inject_hf=inject_swapped_halves,
    layers=dense_layers,
)
ALL_REDUCE = Fault(
    name="all-reduce-missing",
    description="one tensor-parallel rank's share of one layer's attention output is lost (emulated on one device)",
    default_layer=1,
    default_strength=4,
    unit="ranks",
    expected_phase=Phase.BOTH,
    expected_module="model.layers.{layer}.self_attn.o_proj",
    also=("model.layers.{layer}.self_attn",),
    level="tensors",
    inject_hf=inject_missing_rank,
)
QK_NORM = Fault(
    name="qk-norm-skipped",
    description="queries and keys of one layer are not normalised",
    default_layer=1,
    default_strength=1,
    unit="on or off",
    expected_phase=Phase.BOTH,
    expected_module="model.layers.{layer}.self_attn.q_norm",
    also=("model.layers.{layer}.self_attn.k_norm", "model.layers.{layer}.self_attn.query"),
    level="tensors",
    inject_hf=inject_no_qk_norm,
    obstacle=has_qk_norm,
)
