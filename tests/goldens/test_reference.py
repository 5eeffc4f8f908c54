"""References against plain decoding written out here: one full forward per token, no cache, no batch."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from accuracy_core.errors import ConfigurationError, InputMismatchError, NotMeasuredError, ReferenceError_
from accuracy_core.goldens import generate_three_way_reference_logits, load_reference_model, teacher_forcing
from accuracy_core.goldens.narrow_products import use_float32_kernels
from accuracy_core.goldens.reference_config import attention_implementation, load_config
from accuracy_core.models import embedded_model
from accuracy_core.models.tiny_tokenizer import EOS_ID

CHECKPOINT = str(embedded_model())
LENGTH = 32


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(CHECKPOINT)


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    lines = (embedded_model() / "test.jsonl").read_text().splitlines()[:6]
    return [f"Q: {json.loads(line)['question']}\nA:" for line in lines]


@pytest.fixture(scope="module")
def references(prompts: list[str], tokenizer: Any) -> dict[str, list[Any]]:
    return generate_three_way_reference_logits(CHECKPOINT, torch.bfloat16, LENGTH, prompts, tokenizer)


@pytest.fixture(scope="module")
def fp32_model() -> Any:
    return load_reference_model(CHECKPOINT, torch.float32).eval()


@torch.inference_mode()
def plain_greedy(model: Any, prompt: list[int], length: int) -> tuple[list[int], torch.Tensor]:
    tokens, rows = [], []
    for _ in range(length):
        row = model(input_ids=torch.tensor([prompt + tokens]), use_cache=False).logits[0, -1].float()
        rows.append(row)
        tokens.append(int(row.argmax()))
    return tokens, torch.stack(rows)


@torch.inference_mode()
def stepwise_logits(model: Any, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """(tokens, vocab): decoding with a KV cache, as engines do."""
    rows, cache, step = [], None, torch.tensor([prompt])
    for token in tokens:
        output = model(input_ids=step, past_key_values=cache, use_cache=True)
        cache, step = output.past_key_values, torch.tensor([[token]])
        rows.append(output.logits[0, -1].float())
    return torch.stack(rows)


def test_shapes_and_dtypes(references: dict[str, list[Any]], prompts: list[str], tokenizer: Any) -> None:
    assert set(references) == {"fp32_logits", "dtype_logits", "input_ids", "token_ids"}
    for index, prompt in enumerate(prompts):
        assert references["fp32_logits"][index].shape == (LENGTH, 1, 260)
        assert references["dtype_logits"][index].shape == (LENGTH, 1, 260)
        assert references["fp32_logits"][index].dtype == references["dtype_logits"][index].dtype == torch.float32
        assert references["input_ids"][index] == [tokenizer(prompt).input_ids]
        assert len(references["token_ids"][index]) == LENGTH


def test_fp32_is_plain_greedy_decoding_past_eos(references: dict[str, list[Any]], fp32_model: Any) -> None:
    for index, (prompt,) in enumerate(references["input_ids"]):
        tokens, rows = plain_greedy(fp32_model, prompt, LENGTH)
        assert references["token_ids"][index] == tokens
        stored = references["fp32_logits"][index][:, 0]
        assert (stored - rows).abs().max() <= 1e-5 * rows.abs().max()
        assert stored.argmax(-1).tolist() == tokens
    ends = [tokens.index(EOS_ID) for tokens in references["token_ids"]]
    assert max(ends) < LENGTH - 1  # EOS is a token like any other: decoding went on behind it


def test_one_forward_is_cached_decoding_in_fp32(references: dict[str, list[Any]], fp32_model: Any) -> None:
    """Measured on 30 prompts: 1.9e-6 of the largest |logit|; 1e-4 is the limit that is promised."""
    for index, (prompt,) in enumerate(references["input_ids"]):
        rows = stepwise_logits(fp32_model, prompt, references["token_ids"][index])
        assert (references["fp32_logits"][index][:, 0] - rows).abs().max() <= 1e-4 * rows.abs().max()


def test_one_forward_is_cached_decoding_in_bf16_up_to_rounding(references: dict[str, list[Any]]) -> None:
    """Measured on 30 prompts: 1.15 % of the largest |logit|, about three bf16 steps (2**-8) of it."""
    model = load_reference_model(CHECKPOINT, torch.bfloat16).eval()
    for index, (prompt,) in enumerate(references["input_ids"]):
        rows = stepwise_logits(model, prompt, references["token_ids"][index])
        difference = (references["dtype_logits"][index][:, 0] - rows).abs().max()
        assert difference <= 0.03 * rows.abs().max()


def test_bf16_follows_fp32_tokens_in_one_forward(references: dict[str, list[Any]]) -> None:
    model = load_reference_model(CHECKPOINT, torch.bfloat16).eval()
    use_float32_kernels(model, torch.bfloat16)
    for index, (prompt,) in enumerate(references["input_ids"]):
        ids = torch.tensor([prompt + references["token_ids"][index]])
        with torch.inference_mode():
            whole = model(input_ids=ids, use_cache=False).logits[0]
        assert whole.dtype is torch.bfloat16
        expected = whole[len(prompt) - 1 : -1].float()
        stored = references["dtype_logits"][index][:, 0]
        assert (stored - expected).abs().max() <= 2**-8 * expected.abs().max()
        assert torch.equal(stored.to(torch.bfloat16).float(), stored)
        assert not torch.equal(stored, references["fp32_logits"][index][:, 0])


def test_result_does_not_depend_on_the_batch(
    references: dict[str, list[Any]], prompts: list[str], tokenizer: Any
) -> None:
    alone = generate_three_way_reference_logits(CHECKPOINT, "bfloat16", LENGTH, prompts[2:3], tokenizer)
    for name in ("fp32_logits", "dtype_logits"):
        assert torch.equal(alone[name][0], references[name][2])
    assert alone["token_ids"][0] == references["token_ids"][2]


def test_token_ids_as_prompts_give_the_same(references: dict[str, list[Any]]) -> None:
    ids = [prompt for (prompt,) in references["input_ids"][:2]]
    again = generate_three_way_reference_logits(CHECKPOINT, "bf16", LENGTH, ids)
    for name in ("fp32_logits", "dtype_logits"):
        assert all(torch.equal(a, b) for a, b in zip(again[name], references[name], strict=False))


def test_forced_tokens_are_followed(references: dict[str, list[Any]], fp32_model: Any) -> None:
    (prompt,) = references["input_ids"][0]
    forced = [5, EOS_ID, 17, 200]
    result = generate_three_way_reference_logits(CHECKPOINT, "bfloat16", 4, [prompt], forced_token_ids=[forced])
    assert result["token_ids"] == [forced]
    rows = stepwise_logits(fp32_model, prompt, forced)
    assert (result["fp32_logits"][0][:, 0] - rows).abs().max() <= 1e-4 * rows.abs().max()
    assert rows.argmax(-1).tolist() != forced


def test_draft_token_at_a_near_tie_is_corrected(
    references: dict[str, list[Any]], fp32_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draft takes a wrong turn (as a rounding difference at a tie makes it): the result is greedy all the same."""
    original = teacher_forcing.greedy_draft
    turned: list[int] = []

    def wrong_turn(model: Any, prompts: list[list[int]], length: int) -> list[tuple[list[int], torch.Tensor]]:
        drafts = original(model, prompts, length)
        if not turned:
            turned.append(length)
            (tokens, logits), *rest = drafts
            drafts = [([*tokens[:5], (tokens[5] + 1) % 260, *tokens[6:]], logits), *rest]
        return drafts

    monkeypatch.setattr(teacher_forcing, "greedy_draft", wrong_turn)
    (prompt,) = references["input_ids"][0]
    (rows,) = teacher_forcing.greedy_rows(fp32_model, [prompt], LENGTH)
    assert rows.corrections == 1
    assert rows.tokens == references["token_ids"][0]
    assert torch.equal(rows.logits, references["fp32_logits"][0][:, 0])


def test_fp32_model_is_freed_before_the_other_is_loaded(prompts: list[str], tokenizer: Any) -> None:
    alive: list[weakref.ref[Any]] = []

    def loader(checkpoint: str, dtype: torch.dtype, *, config: Any) -> Any:
        gc.collect()
        assert all(reference() is None for reference in alive)
        model = load_reference_model(checkpoint, dtype, config=config)
        alive.append(weakref.ref(model))
        return model

    generate_three_way_reference_logits(CHECKPOINT, "bfloat16", 4, prompts[:2], tokenizer, model_loader=loader)
    assert len(alive) == 2


def test_threads_are_set_and_given_back_whatever_happens(prompts: list[str], tokenizer: Any) -> None:
    seen: list[int] = []

    def loader(checkpoint: str, dtype: torch.dtype, *, config: Any) -> Any:
        seen.append(torch.get_num_threads())
        raise RuntimeError("seen enough")

    before = torch.get_num_threads()
    with pytest.raises(RuntimeError, match="seen enough"):
        generate_three_way_reference_logits(
            CHECKPOINT, "bfloat16", 1, prompts[:1], tokenizer, model_loader=loader, num_threads=before + 1
        )
    assert seen == [before + 1]
    assert torch.get_num_threads() == before


def test_float32_target_equals_the_baseline(prompts: list[str], tokenizer: Any) -> None:
    result = generate_three_way_reference_logits(CHECKPOINT, "float32", 6, prompts[:1], tokenizer)
    assert torch.equal(result["fp32_logits"][0], result["dtype_logits"][0])


def test_overrides_build_another_model(prompts: list[str], tokenizer: Any) -> None:
    config = load_config(CHECKPOINT)
    shallow = generate_three_way_reference_logits(
        CHECKPOINT, "bfloat16", 4, prompts[:1], tokenizer, hf_overrides={"num_hidden_layers": 2}
    )
    layers: list[int] = []

    def loader(checkpoint: str, dtype: torch.dtype, *, config: Any) -> Any:
        model = load_reference_model(checkpoint, dtype, config=config)
        layers.append(len(model.model.layers))
        return model

    config.num_hidden_layers = 2
    given = generate_three_way_reference_logits(
        CHECKPOINT, "bfloat16", 4, prompts[:1], tokenizer, config=config, model_loader=loader
    )
    assert layers == [2, 2]
    assert torch.equal(shallow["fp32_logits"][0], given["fp32_logits"][0])


# --- faults that must be refused ------------------------------------------------------------------------------------


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


# --- other architectures --------------------------------------------------------------------------------------------

SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip


def random_checkpoint(folder: Path, name: str, **extra: Any) -> str:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**SMALL, **extra})
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.ndim > 1 else 1)  # random weights are too small to prefer any token
    model.save_pretrained(folder / name)
    return str(folder / name)


ARCHITECTURES: dict[str, dict[str, Any]] = {
    "Mistral": {"sliding_window": 8},
    "Qwen3": {},
    "Gemma2": {"query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0, "sliding_window": 8},
    "Gemma3Text": {
        "query_pre_attn_scalar": 8,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_other_architectures_decode_greedily(name: str, tmp_path: Path) -> None:
    checkpoint = random_checkpoint(tmp_path, name, **ARCHITECTURES[name])
    prompts = [[1, 2, 3, 4, 5], [6, 7], list(range(8, 28))]
    result = generate_three_way_reference_logits(checkpoint, "bfloat16", 16, prompts)
    attention = attention_implementation(load_config(checkpoint))
    model = load_reference_model(checkpoint, torch.float32, attn_implementation=attention).eval()
    for index, prompt in enumerate(prompts):
        tokens, rows = plain_greedy(model, prompt, 16)
        assert result["token_ids"][index] == tokens
        assert (result["fp32_logits"][index][:, 0] - rows).abs().max() <= 1e-5 * rows.abs().max()


def test_soft_capped_attention_is_never_computed_with_sdpa(tmp_path: Path) -> None:
    """transformers' SDPA drops the cap silently: were it used, the reference would be the wrong one."""
    checkpoint = random_checkpoint(tmp_path, "Gemma2", **ARCHITECTURES["Gemma2"])
    prompt = list(range(1, 13))
    result = generate_three_way_reference_logits(checkpoint, "bfloat16", 4, [prompt])["fp32_logits"][0][:, 0]
    capped, dropped = (
        plain_greedy(load_reference_model(checkpoint, torch.float32, attn_implementation=name).eval(), prompt, 1)[1][0]
        for name in ("eager", "sdpa")
    )
    assert (result[0] - capped).abs().max() <= 1e-5 * capped.abs().max()
    assert (dropped - capped).abs().max() > 1e-3 * capped.abs().max()
    with pytest.raises(ConfigurationError, match="soft cap"):
        generate_three_way_reference_logits(checkpoint, "bfloat16", 4, [prompt], attn_implementation="sdpa")
