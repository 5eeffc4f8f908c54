"""A target that adds the residual and normalises in one step is right, and its norms can still be wrong."""

from __future__ import annotations

from types import MethodType
from typing import Any

import pytest
import torch

from accuracy_core.capture import local
from accuracy_core.capture.hf_taps import available_taps
from accuracy_core.capture.limits import TensorLimits
from accuracy_core.capture.local import record_local
from accuracy_core.capture.model import TensorCaptureModel
from accuracy_core.capture.unrounded import norms_of_sums
from accuracy_core.capture.verdict import PromptTensors, comparable, judge_prompt
from accuracy_core.outcome import Verdict
from accuracy_core.schemas import TensorCompareResult
from tests.capture.conftest import FORCED, IDS, PROMPT, small_model

#: one feature holds nearly all of a row's energy and norms weigh it down again, as in trained models
MASSIVE, FEATURE = 100.3, 3
NORM = "model.layers.1.post_attention_layernorm"


def _model(dtype: torch.dtype) -> Any:
    model = small_model("llama", dtype)
    model.model.embed_tokens.weight.data[:, FEATURE] = MASSIVE
    for layer in model.model.layers:
        for branch in (layer.self_attn.o_proj, layer.mlp.down_proj):
            branch.weight.data[FEATURE] *= 20
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            norm.weight.data[FEATURE] = 2**-7
    return model


def _fuse(model: Any) -> Any:
    """Norms read the float32 sum of stream and branch; the stream gets it rounded."""
    for layer in model.model.layers:
        layer.forward = MethodType(_fused_layer, layer)
        for name in ("input_layernorm", "post_attention_layernorm"):
            norm = getattr(layer, name)
            norm.forward = MethodType(_wide_norm, norm)
    model.model.norm.forward = MethodType(_wide_norm, model.model.norm)
    return model


def _wide_norm(self: Any, stream: torch.Tensor) -> torch.Tensor:
    exact = getattr(stream, "exact", stream.float())
    scaled = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + self.variance_epsilon)
    return self.weight * scaled.to(stream.dtype)


def _fused_layer(self: Any, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    branch, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
    middle = _rounded_sum(hidden_states, branch)
    return _rounded_sum(middle, self.mlp(self.post_attention_layernorm(middle)))


def _rounded_sum(stream: torch.Tensor, branch: torch.Tensor) -> torch.Tensor:
    exact = stream.float() + branch.float()
    rounded = exact.to(stream.dtype)
    rounded.exact = exact  # type: ignore[attr-defined]
    return rounded


@pytest.fixture(scope="module")
def sides() -> tuple[Any, Any]:
    torch.set_num_threads(1)
    return _model(torch.float32), _model(torch.bfloat16)


def _judge(sides: tuple[Any, Any], target: Any) -> TensorCompareResult:
    runs = [TensorCaptureModel(model).capture(PROMPT, FORCED, stepwise=False) for model in sides]
    captured = TensorCaptureModel(target).capture(PROMPT, FORCED, stepwise=False)
    fits = comparable(captured, runs[0])
    recorded = [record_local(model, IDS, fits) for model in sides]
    tensors = PromptTensors(len(PROMPT), captured, runs[0], runs[1], recorded[0], recorded[1], available_taps(sides[0]))
    return judge_prompt(0, tensors, sides[0].config.to_dict(), torch.bfloat16, TensorLimits.of())


def _norms(result: TensorCompareResult) -> float:
    return max(row.local_scale_ratio for row in result.modules if "norm" in row.module)


def test_fused_norms_are_right(sides: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    result = _judge(sides, _fuse(_model(torch.bfloat16)))
    assert result.verdict is Verdict.PASS
    assert _norms(result) < TensorLimits.of().scale / 2
    monkeypatch.setattr(local, "norms_of_sums", lambda *_: {})
    assert _norms(_judge(sides, _fuse(_model(torch.bfloat16)))) > TensorLimits.of().scale


def test_norms_of_the_rounded_sum_stay_right(sides: tuple[Any, Any]) -> None:
    result = _judge(sides, sides[1])
    assert result.verdict is Verdict.PASS
    assert _norms(result) <= 1.05


@pytest.mark.parametrize("fused", [True, False])
def test_a_wrong_norm_is_still_named(sides: tuple[Any, Any], fused: bool) -> None:
    target = _model(torch.bfloat16)
    target.get_submodule(NORM).variance_epsilon = 20.0
    result = _judge(sides, _fuse(target) if fused else target)
    assert result.first_divergent is not None
    assert result.first_divergent.module == NORM


def test_the_sum_is_believed_only_where_it_gives_the_stream(sides: tuple[Any, Any]) -> None:
    wide, narrow = sides
    captured = TensorCaptureModel(narrow).capture(PROMPT, FORCED, stepwise=False)
    order = list(record_local(wide, IDS, captured))
    found = norms_of_sums(wide, order, captured, len(IDS))
    norms = [f"model.layers.{layer}.{name}_layernorm" for layer in (0, 1) for name in ("input", "post_attention")]
    assert set(found) == {*norms[1:], "model.norm"}, "nothing is added in front of the first norm"
    by_hand = captured["model.layers.0"].float() + captured["model.layers.1.self_attn.o_proj"].float()
    by_hand *= torch.rsqrt(by_hand.square().mean(-1, keepdim=True) + wide.config.rms_norm_eps)
    assert torch.allclose(found[NORM], by_hand * wide.get_submodule(NORM).weight, rtol=1e-6, atol=0)
    captured["model.layers.1.residual_mid"] = captured["model.layers.1.residual_mid"].clone()
    captured["model.layers.1.residual_mid"][2, 5] += 1
    assert NORM not in norms_of_sums(wide, order, captured, len(IDS))
    assert norms_of_sums(narrow, order, captured, len(IDS)) == {}, "a model of the target's own dtype rounds as it does"
