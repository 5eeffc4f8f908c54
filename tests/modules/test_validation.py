"""Every kind of module of every architecture: right ones pass, each broken one fails and is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from accuracy_core.errors import ConfigurationError
from accuracy_core.models.architectures import architecture_checkpoint
from accuracy_core.modules import HfModuleExecutor, Plan, validate_modules
from accuracy_core.modules.figures import failure_page
from accuracy_core.modules.one_layer import load_one_layer
from accuracy_core.outcome import Outcome, Verdict

PLAN = Plan(seeds=3, prefill=12, decode=3)
ARCHITECTURES = ["llama", "gemma2", "qwen2", "qwen3", "gemma3", "mistral-window", "mixtral", "gpt-oss"]


def validate(name: str, change: Callable[[Any], Any] | None = None, **settings: Any):
    checkpoint = str(architecture_checkpoint(name))
    with HfModuleExecutor(checkpoint, torch.bfloat16, change=change) as target:
        return validate_modules(checkpoint, target, plan=PLAN, **settings)


def failing(result) -> set[str]:
    return {check.kind for check in result.failed}


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_right_modules_pass(name):
    result = validate(name, layers=(1, 3))
    assert failing(result) == set()
    assert {check.verdict for check in result.checks} == {Verdict.PASS}  # all of them measured
    kinds = {check.kind for check in result.checks}
    assert {"embedding", "rms_norm", "rope", "attention", "decoder_layer", "mlp"} <= kinds
    assert ({"router", "experts"} <= kinds) == (name in ("mixtral", "gpt-oss"))


def scale(module: nn.Module, factor: float) -> None:
    module.register_forward_hook(
        lambda _m, _a, out: (out[0] * factor, *out[1:]) if isinstance(out, tuple) else out * factor
    )


def layer_of(model: Any) -> Any:
    return model.model.layers[0]


def wrong_eps(model: Any) -> None:
    layer_of(model).input_layernorm.variance_epsilon = 0.1


def wrong_rope(model: Any) -> None:
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq * 0.9


def wrong_scale(model: Any) -> None:
    layer_of(model).self_attn.scaling *= 1.3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change", "named", "untouched"),
    [
        ("llama", wrong_eps, {"rms_norm", "decoder_layer"}, {"mlp", "attention", "rope", "embedding"}),
        ("llama", wrong_rope, {"rope", "attention"}, {"mlp", "rms_norm", "embedding"}),
        ("llama", wrong_scale, {"attention"}, {"mlp", "rms_norm", "rope", "embedding"}),
        ("qwen3", lambda m: scale(layer_of(m).mlp, 1.05), {"mlp", "decoder_layer"}, {"attention", "rope"}),
        ("llama", lambda m: scale(m.model.embed_tokens, 1.02), {"embedding"}, {"attention", "mlp"}),
        ("mixtral", lambda m: scale(layer_of(m).mlp.experts, 1.05), {"experts", "mlp"}, {"router", "attention"}),
        ("mixtral", lambda m: scale(layer_of(m).mlp.gate, 1.05), {"router"}, {"attention", "rms_norm"}),
        ("gemma3", lambda m: scale(layer_of(m).self_attn.q_norm, 1.05), {"rope", "attention"}, {"mlp"}),
    ],
)
def test_a_broken_module_fails_and_is_named(name, change, named, untouched):
    broken = failing(validate(name, change))
    assert named <= broken
    assert not untouched & broken


@pytest.mark.slow
def test_a_fault_of_decode_alone_is_placed_there():
    def forget(model):
        def cut(module, args, kwargs):
            kwargs["past_key_values"] = None if kwargs["hidden_states"].shape[1] == 1 else kwargs["past_key_values"]
            return args, kwargs

        layer_of(model).self_attn.register_forward_pre_hook(cut, with_kwargs=True)

    checks = {check.phase: check for check in validate("llama", forget, kinds=["attention"]).checks}
    assert checks["prefill"].verdict is Verdict.PASS
    assert checks["decode"].verdict is Verdict.FAIL


def test_one_layer_alone_is_the_layer_of_the_whole_model():
    from transformers import AutoModelForCausalLM

    checkpoint = architecture_checkpoint("llama")
    whole = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    alone = load_one_layer(checkpoint, 2, torch.float32)
    expected = whole.model.layers[2].state_dict()
    assert expected.keys() == alone.model.layers[0].state_dict().keys()
    assert all(torch.equal(value, expected[name]) for name, value in alone.model.layers[0].state_dict().items())
    assert sum(p.numel() for p in alone.parameters()) < sum(p.numel() for p in whole.parameters()) / 3


def test_nan_is_a_failure_and_a_page_is_drawn(tmp_path):
    def poison(model):
        def hook(_module, _args, out):
            out = out.clone()
            out[0, -1, 0] = float("nan")
            return out

        layer_of(model).mlp.register_forward_hook(hook)

    result = validate(
        "llama", poison, kinds=["mlp"], on_failure=lambda check, data: failure_page(tmp_path, check, data)
    )
    assert {check.verdict for check in result.checks} == {Verdict.FAIL}
    assert all("NaN" in check.reason and (tmp_path / check.figure).exists() for check in result.checks)


def test_what_the_model_does_not_have_is_not_measured():
    result = validate("llama", kinds=["router"])
    assert [check.outcome for check in result.checks] == [Outcome.NOT_MEASURED]
    assert result.verdict is None


@pytest.mark.parametrize(("settings", "says"), [({"kinds": ["atention"]}, "attention"), ({"layers": (9,)}, "0 to 3")])
def test_wrong_names_and_layers(settings, says):
    with pytest.raises(ConfigurationError) as caught:
        validate("llama", **settings)
    assert says in str(caught.value)
