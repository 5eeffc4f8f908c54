"""Useless references and bad input: a typed error that says what to do, the latter before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from accuracy_core.errors import ConfigurationError, InputMismatchError, NotMeasuredError, ReferenceError_
from accuracy_core.goldens import generate_three_way_reference_logits, load_reference_model
from accuracy_core.goldens.reference_config import load_config
from accuracy_core.models import embedded_model

CHECKPOINT = str(embedded_model())


def poisoned(value: float) -> Callable[..., Any]:
    def loader(checkpoint: str, dtype: torch.dtype, *, config: Any) -> Any:
        model = load_reference_model(checkpoint, dtype, config=config)
        with torch.no_grad():
            model.model.layers[1].mlp.down_proj.weight[3, 5] = value
        return model

    return loader


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_reference_is_refused(value: float, prompts: list[str], tokenizer: Any) -> None:
    for forced in (None, [[1, 2]]):
        with pytest.raises(ReferenceError_, match="NaN or infinite"):
            generate_three_way_reference_logits(
                CHECKPOINT, "bfloat16", 2, prompts[:1], tokenizer, model_loader=poisoned(value), forced_token_ids=forced
            )


def test_non_finite_only_in_the_narrow_dtype_is_refused(prompts: list[str], tokenizer: Any) -> None:
    def loader(checkpoint: str, dtype: torch.dtype, *, config: Any) -> Any:
        model = load_reference_model(checkpoint, dtype, config=config)
        with torch.no_grad():
            model.lm_head.weight.mul_(3e4)  # beyond float16
        return model

    with pytest.raises(ReferenceError_, match="float16 reference has NaN or infinite"):
        generate_three_way_reference_logits(CHECKPOINT, "float16", 2, prompts[:1], tokenizer, model_loader=loader)


def test_kv_cache_that_changes_results_is_refused(prompts: list[str], tokenizer: Any) -> None:
    """A fault in cached decoding by one per mille: far above rounding, far below what changes many tokens."""

    def loader(checkpoint: str, dtype: torch.dtype, *, config: Any) -> Any:
        model = load_reference_model(checkpoint, dtype, config=config)
        attention = model.model.layers[0].self_attn
        original = attention.forward

        def forward(*args: Any, past_key_values: Any = None, **kwargs: Any) -> Any:
            output, weights = original(*args, past_key_values=past_key_values, **kwargs)
            return (output if past_key_values is None else output * 1.001), weights

        attention.forward = forward
        return model

    with pytest.raises(ReferenceError_, match="token-by-token decoding and one forward pass differ"):
        generate_three_way_reference_logits(CHECKPOINT, "bfloat16", 8, prompts[:2], tokenizer, model_loader=loader)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda *_, **__: None, "returned a NoneType"),
        (lambda *_, **__: torch.nn.Linear(2, 2), "returned a Linear"),
        (lambda path, _, config: load_reference_model(path, torch.bfloat16, config=config), "asked for torch.float32"),
        (lambda path, _, config: load_reference_model(path, torch.float32, config=config), "asked for torch.bfloat16"),
    ],
    ids=["nothing", "no language model", "bf16 instead of fp32", "fp32 instead of bf16"],
)
def test_loader_that_returns_the_wrong_thing(
    made: Callable[..., Any], message: str, prompts: list[str], tokenizer: Any
) -> None:
    with pytest.raises(ReferenceError_, match=message) as caught:
        generate_three_way_reference_logits(CHECKPOINT, "bfloat16", 2, prompts[:1], tokenizer, model_loader=made)
    assert caught.value.fix


def never_load(*_: object, **__: object) -> Any:
    raise AssertionError("the model was loaded before the input was checked")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"prompts": []}, ConfigurationError, "empty"),
        ({"prompts": "text"}, ConfigurationError, "must be a list"),
        ({"prompts": ["text"], "tokenizer": None}, ConfigurationError, "no tokenizer"),
        ({"prompts": [""]}, ConfigurationError, "tokenises to nothing"),
        ({"prompts": [[]]}, ConfigurationError, "no tokens"),
        ({"prompts": [[1, 1.5]]}, ConfigurationError, "no token id"),
        ({"prompts": [[True]]}, ConfigurationError, "no token id"),
        ({"prompts": [7]}, ConfigurationError, "neither a text nor"),
        ({"prompts": [[0, 260]]}, ConfigurationError, "outside the model's vocabulary"),
        ({"prompts": [[0, -1]]}, ConfigurationError, "outside the model's vocabulary"),
        ({"prompts": [[0] * 250]}, ConfigurationError, "context of 256"),
        ({"output_length": 0}, ConfigurationError, "output_length is 0"),
        ({"output_length": -3}, ConfigurationError, "output_length"),
        ({"output_length": 2.0}, ConfigurationError, "output_length"),
        ({"output_length": True}, ConfigurationError, "output_length"),
        ({"target_dtype": "int8"}, ConfigurationError, "int8"),
        ({"target_dtype": torch.float64}, ConfigurationError, "float64"),
        ({"kv_cache_dtype": "fp8_e5m2"}, NotMeasuredError, "fp8_e5m2 KV cache"),
        ({"kv_cache_dtype": "fp8", "attn_implementation": "eager"}, NotMeasuredError, "eager attention"),
        ({"config": {"num_hidden_layers": 2}}, ConfigurationError, "not a transformers configuration"),
        ({"hf_overrides": {"num_hiden_layers": 2}}, ConfigurationError, "num_hiden_layers"),
        ({"attn_implementation": "magic"}, ConfigurationError, "magic"),
        ({"num_threads": 0}, ConfigurationError, "num_threads"),
        ({"forced_token_ids": []}, InputMismatchError, "0 lists of forced tokens for 1 prompts"),
        ({"forced_token_ids": [[1]]}, InputMismatchError, "1 forced tokens, output_length is 8"),
        ({"forced_token_ids": [[999] * 8]}, ConfigurationError, "outside the model's vocabulary"),
        ({"model_checkpoint": "/no/such/folder"}, ConfigurationError, "config of /no/such/folder"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_bad_input_is_refused_before_loading(
    change: dict[str, Any], error: type[Exception], message: str, tokenizer: Any
) -> None:
    arguments = {
        "model_checkpoint": CHECKPOINT, "target_dtype": "bfloat16", "output_length": 8, "prompts": ["Q: 1+1\nA:"],
        "tokenizer": tokenizer, "model_loader": never_load,
    }  # fmt: skip
    with pytest.raises(error, match=message):
        generate_three_way_reference_logits(**{**arguments, **change})


def test_near_names_of_overrides_are_offered() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_config(CHECKPOINT, hf_overrides={"num_hiden_layers": 2})
    assert "num_hidden_layers" in caught.value.fix


def test_quantised_checkpoint_needs_a_loader(tokenizer: Any) -> None:
    config = load_config(CHECKPOINT)
    config.quantization_config = {"quant_method": "fp8"}
    with pytest.raises(NotMeasuredError, match="fp8") as caught:
        generate_three_way_reference_logits(CHECKPOINT, "bfloat16", 2, ["Q: 1+1\nA:"], tokenizer, config=config)
    assert "model_loader" in caught.value.fix
