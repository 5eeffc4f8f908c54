"""Record and replace: a fault shows where it is, whatever it does to what follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from accuracy_core.capture.hf_taps import available_taps
from accuracy_core.capture.limits import TensorLimits
from accuracy_core.capture.local import record_local
from accuracy_core.capture.model import TensorCaptureModel
from accuracy_core.capture.verdict import PromptTensors, comparable, judge_prompt
from accuracy_core.errors import InputMismatchError
from accuracy_core.outcome import Verdict
from accuracy_core.schemas import Phase, TensorCompareResult
from tests.capture.conftest import FORCED, IDS, PROMPT, small_model

#: FP32 and bfloat16 model, and their own runs
Sides = tuple[Any, Any, dict[str, torch.Tensor], dict[str, torch.Tensor]]


def _judge(references: Sides, target: Any) -> TensorCompareResult:
    fp32, bf16, *runs = references
    captured = TensorCaptureModel(target).capture(PROMPT, FORCED)
    fits = comparable(captured, runs[0])
    local = [record_local(model, IDS, fits) for model in (fp32, bf16)]
    tensors = PromptTensors(len(PROMPT), captured, runs[0], runs[1], local[0], local[1], available_taps(fp32))
    return judge_prompt(0, tensors, fp32.config.to_dict(), torch.bfloat16, TensorLimits.of())


def _scale_output(path: str, factor: float) -> Callable[[Any], None]:
    def inject(model: Any) -> None:
        model.get_submodule(path).register_forward_hook(lambda _m, _a, out: out * factor)

    return inject


def _drop_bias(model: Any) -> None:
    model.model.layers[0].self_attn.k_proj.bias.data.zero_()


def _theta(model: Any) -> None:
    frequencies = model.model.rotary_emb.inv_freq
    steps = torch.arange(len(frequencies)) / len(frequencies)
    frequencies.mul_(1.2**-steps)


def _epsilon(model: Any) -> None:
    model.model.layers[1].post_attention_layernorm.variance_epsilon = 0.1


def _scaling(model: Any) -> None:
    model.model.layers[1].self_attn.scaling *= 1.05


@pytest.mark.parametrize(
    ("inject", "module", "phase"),
    [
        (_scale_output("model.layers.0.mlp.down_proj", 1.05), "model.layers.0.mlp.down_proj", Phase.BOTH),
        (_theta, "model.layers.0.self_attn.query", Phase.BOTH),
        pytest.param(_drop_bias, "model.layers.0.self_attn.k_proj", Phase.BOTH, marks=pytest.mark.slow),
        pytest.param(_epsilon, "model.layers.1.post_attention_layernorm", Phase.BOTH, marks=pytest.mark.slow),
        pytest.param(_scaling, "model.layers.1.self_attn.attn", Phase.BOTH, marks=pytest.mark.slow),
        pytest.param(_scale_output("lm_head", 1.01), "lm_head", Phase.BOTH, marks=pytest.mark.slow),
    ],
    ids=["mlp", "theta", "bias", "epsilon", "scale", "head"],
)
def test_the_first_wrong_module_is_the_faulty_one(
    qwen2_sides: Sides, inject: Callable[[Any], None], module: str, phase: Phase
) -> None:
    target = small_model("qwen2", torch.bfloat16)
    inject(target)
    result = _judge(qwen2_sides, target)
    assert result.verdict is Verdict.FAIL
    assert result.first_divergent is not None
    assert (result.first_divergent.module, result.first_divergent.phase) == (module, phase)
    # nothing else is blamed, apart from what a wrong rotary embedding does to every query and key
    blamed = {row.module for row in result.modules if row.verdict is Verdict.FAIL}
    allowed = ("query", "key") if module.endswith("query") else (module,)
    assert all(tap.endswith(allowed) for tap in blamed)


@pytest.fixture(scope="module")
def qwen2_sides() -> Sides:
    models = small_model("qwen2"), small_model("qwen2", torch.bfloat16)
    runs = [TensorCaptureModel(model).capture(PROMPT, FORCED, stepwise=False) for model in models]
    return *models, runs[0], runs[1]


def test_a_right_target_passes_through_the_decode_path(qwen2_sides: Sides) -> None:
    result = _judge(qwen2_sides, qwen2_sides[1])
    assert result.verdict is Verdict.PASS
    assert max(row.local_ratio for row in result.modules if row.local_ratio == row.local_ratio) <= 1.05


def test_nan_from_one_module_on_blames_that_module_alone(qwen2_sides: Sides) -> None:
    target = small_model("qwen2", torch.bfloat16)

    def poison(_module: Any, _args: Any, output: torch.Tensor) -> torch.Tensor:
        broken = output.clone()
        broken[..., 3] = float("nan")
        return broken

    target.model.layers[0].mlp.up_proj.register_forward_hook(poison)
    first = _judge(qwen2_sides, target).first_divergent
    assert first is not None
    assert (first.module, first.position) == ("model.layers.0.mlp.up_proj", 0)


def test_a_tensor_with_more_rows_than_positions_is_refused(qwen2_sides: Sides) -> None:
    with pytest.raises(InputMismatchError, match=r"\(99, 64\) for 14 positions"):
        record_local(qwen2_sides[0], IDS, {"model.norm": torch.zeros(99, 64)})


def test_taps_that_the_model_lacks_are_left_out(qwen2_sides: Sides) -> None:
    assert record_local(qwen2_sides[0], IDS, {"model.rotary": torch.zeros(14, 64)}) == {}
