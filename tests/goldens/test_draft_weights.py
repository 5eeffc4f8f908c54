"""Weights packed for drafting: the same products, used only where they are, and gone afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from accuracy_core.goldens import draft_weights, load_reference_model, teacher_forcing
from accuracy_core.goldens.draft_weights import WORTHWHILE_STEPS, DraftWeights, fits_half
from accuracy_core.models import embedded_model

PROMPTS = [[1, 20, 30], [1, 40, 50, 60], [1, 70]]


def bf16_layer(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    layer = nn.Linear(inputs, outputs, bias=bias)
    layer.weight.data = layer.weight.data.bfloat16().float()
    return layer


@pytest.fixture(scope="module")
def model() -> Any:
    return load_reference_model(str(embedded_model()), torch.float32).eval()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("scale", [1.0, 2.0**-12, 2.0**15])
def test_products_are_those_of_the_plain_weights(bias: bool, scale: float) -> None:
    layer = bf16_layer(700, 50, bias)
    layer.weight.data *= scale  # a power of two: still bfloat16 values, partly below FP16's normal range
    inputs = torch.randn(9, 700)
    exact = inputs.double() @ layer.weight.detach().double().T
    exact = exact + layer.bias.detach().double() if bias else exact
    size = inputs.double().abs() @ layer.weight.detach().double().abs().T
    packed = DraftWeights(nn.Sequential(layer), WORTHWHILE_STEPS)
    assert len(packed) == 1
    with packed.used(), torch.inference_mode():
        result = layer(inputs)
    # what summing 700 products in FP32 may be off, and what weights lose that are subnormal in FP16
    allowed = 700 * 2.0**-24 * (size + 1) + inputs.double().abs().sum(-1, keepdim=True) * 2.0**-25
    assert bool(((result.double() - exact).abs() <= allowed).all())
    assert "forward" not in vars(layer)


@pytest.mark.parametrize(
    ("weight", "fits"),
    [
        (torch.tensor([[1.0, -0.0078125]]), True),
        (torch.tensor([[1.0, 1.0 + 2**-8]]), False),  # nine significant bits
        (torch.tensor([[65280.0]]), True),  # the largest bfloat16 below FP16's largest value
        (torch.tensor([[65536.0]]), False),
        (torch.tensor([[1.0]]).bfloat16(), False),  # not an FP32 model
        (torch.empty(1, 2, device="meta"), False),  # on the disk
        (torch.zeros(4, 2).T, False),
    ],
)
def test_what_fits(weight: torch.Tensor, fits: bool) -> None:
    assert fits_half(weight) is fits


def test_layers_that_are_not_plain_stay_as_they_are(model: Any) -> None:
    class Other(nn.Linear):
        pass

    hooked = bf16_layer(4, 4)
    hooked.forward = lambda inputs: inputs  # type: ignore[method-assign]
    layers = nn.Sequential(bf16_layer(4, 4), nn.Linear(4, 4), Other(4, 4), hooked)
    assert len(DraftWeights(layers, WORTHWHILE_STEPS)) == 1
    assert hooked(7) == 7


@pytest.mark.parametrize("reason", ["few steps", "little memory", "no kernels"])
def test_left_out(reason: str, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_kernels(_: object) -> None:
        raise RuntimeError("Didn't find engine for operation quantized::linear_prepack_fp16")

    if reason == "little memory":
        monkeypatch.setattr(draft_weights, "free_bytes", lambda: 1000)
    if reason == "no kernels":
        monkeypatch.setattr(draft_weights, "_Packed", no_kernels)
    packed = DraftWeights(model, WORTHWHILE_STEPS - (reason == "few steps"))
    assert len(packed) == 0
    before = teacher_forcing.greedy_draft(model, PROMPTS[:1], 2)[0][1]
    with packed.used():
        assert torch.equal(teacher_forcing.greedy_draft(model, PROMPTS[:1], 2)[0][1], before)


def test_rows_are_those_of_the_plain_weights_whoever_drafted(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    original = DraftWeights.used
    monkeypatch.setattr(DraftWeights, "used", lambda self: used.append(len(self)) or original(self))
    rows = teacher_forcing.greedy_rows(model, PROMPTS, WORTHWHILE_STEPS)
    monkeypatch.setattr(draft_weights, "free_bytes", lambda: 0)
    plain = teacher_forcing.greedy_rows(model, PROMPTS, WORTHWHILE_STEPS)
    assert [count > 0 for count in used] == [True, False]
    for a, b in zip(rows, plain, strict=True):
        assert a.tokens == b.tokens
        assert torch.equal(a.logits, b.logits)
        assert a.deviation <= 1e-5


def test_draft_by_wrong_weights_is_found_and_done_again(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed weights off by one per mille: far above rounding, far below what changes many tokens."""
    original = draft_weights._Packed.__call__
    monkeypatch.setattr(draft_weights._Packed, "__call__", lambda self, inputs: original(self, inputs) * 1.001)
    alone: list[int] = []
    draft = teacher_forcing.greedy_draft

    def watched(model: Any, prompts: list[list[int]], length: int) -> Any:
        alone.append(len(prompts))
        return draft(model, prompts, length)

    monkeypatch.setattr(teacher_forcing, "greedy_draft", watched)
    rows = teacher_forcing.greedy_rows(model, PROMPTS, WORTHWHILE_STEPS)
    assert alone[:2] == [3, 1]
    assert all(row.deviation <= 1e-5 for row in rows)
