"""Choice of experts, and growth of the error with depth."""

from __future__ import annotations

import math

import pytest
import torch

from accuracy_core.capture.depth import depth_growth, progression
from accuracy_core.capture.routing import choice_differs, router_of, undecided
from accuracy_core.capture.tensor_error import tensor_error


def test_experts_within_one_step_of_the_dtype_are_a_toss_up() -> None:
    step = 2.0**-7
    logits = torch.tensor([[2.0, 1.0, 1.0], [2.0, 1.0, 1.0 - 4 * step], [2.0, 1.0, 1.0 - step]]).to(torch.bfloat16)
    assert undecided(logits, 2).tolist() == [True, False, True]
    assert undecided(logits, 3).tolist() == [False, False, False]


def test_order_of_the_chosen_experts_is_no_other_choice() -> None:
    reference = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    target = torch.tensor([[2.0, 3.0, 1.0], [3.0, 1.0, 2.0]])
    assert choice_differs(reference, target, 2).tolist() == [False, True]


def test_router_of_a_block() -> None:
    taps = {"model.layers.0.mlp.gate": 1, "model.layers.1.mlp.router": 1}
    assert router_of("model.layers.0.mlp.experts", taps) == "model.layers.0.mlp.gate"
    assert router_of("model.layers.1.mlp", taps) == "model.layers.1.mlp.router"
    assert router_of("model.layers.2.mlp", taps) is None


@pytest.mark.parametrize("exponent", [0.5, 1.0])
def test_the_exponent_of_growth_is_recovered(exponent: float) -> None:
    f = torch.ones(3, 4)
    errors = {}
    for layer in range(6):
        size = 1e-3 * (layer + 1) ** exponent
        errors[f"model.layers.{layer}"] = tensor_error(f, f + 1e-3, f + size)
    growth = depth_growth(errors, min_layers=3)
    assert growth is not None
    assert growth.layers == list(range(6))
    assert growth.exponent == pytest.approx(exponent, abs=0.01)
    assert growth.base_exponent == pytest.approx(0.0, abs=0.01)
    assert progression(errors)["model.layers.3"] == pytest.approx([1e-3 * 4**exponent] * 3, rel=1e-3)
    few = depth_growth({"model.layers.0": errors["model.layers.0"]}, min_layers=3)
    assert few is not None
    assert math.isnan(few.exponent)
    assert depth_growth({"model.norm": errors["model.layers.0"]}, min_layers=3) is None
