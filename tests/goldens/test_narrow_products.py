"""FP32 kernels on narrow values against the definition, computed in float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from accuracy_core.goldens import narrow_products
from accuracy_core.goldens.narrow_products import use_float32_kernels


@pytest.fixture(autouse=True)
def _slow_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrow_products, "has_native_products", lambda dtype: dtype is torch.float32)


@pytest.mark.parametrize(("dtype", "bits"), [(torch.bfloat16, 8), (torch.float16, 11)])
def test_products_are_those_of_narrow_values_rounded_once(dtype: torch.dtype, bits: int) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(700, 50).to(dtype)
    inputs = torch.randn(9, 700).to(dtype)
    exact = inputs.double() @ layer.weight.detach().double().T + layer.bias.detach().double()
    size = inputs.double().abs() @ layer.weight.detach().double().abs().T
    assert use_float32_kernels(layer, dtype) == 1
    result = layer(inputs)
    assert result.dtype is dtype
    # half a unit of the last place for the rounding, and what summing 700 products in FP32 may be off
    assert bool(((result.double() - exact).abs() <= exact.abs() * 2.0**-bits + 700 * 2.0**-24 * size).all())


def test_only_plain_linear_layers_in_that_dtype_are_changed() -> None:
    class Other(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).bfloat16(), Other(4, 4).bfloat16())
    assert use_float32_kernels(model, torch.bfloat16) == 1
    assert [layer.weight.dtype for layer in model] == [torch.float32, torch.float32, torch.bfloat16]
    assert use_float32_kernels(model, torch.float32) == 0


def test_tied_embedding_stays_narrow() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(10, 4).bfloat16(), "head": nn.Linear(4, 10, bias=False)})
    model["head"].weight = model["embed"].weight
    before = model["embed"].weight.detach().clone()
    assert use_float32_kernels(model, torch.bfloat16) == 1
    assert torch.equal(model["embed"].weight, before)
    assert model["head"](model["embed"](torch.tensor([3]))).dtype is torch.bfloat16
