"""References against plain decoding written out here: one full forward per token, no cache, no batch."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import Any

import pytest
import torch

from accuracy_core.goldens import generate_three_way_reference_logits, load_reference_model, teacher_forcing
from accuracy_core.goldens.narrow_products import use_float32_kernels
from accuracy_core.goldens.reference_config import load_config
from accuracy_core.models import embedded_model
from accuracy_core.models.tiny_tokenizer import EOS_ID

from .helpers import plain_greedy

CHECKPOINT = str(embedded_model())
LENGTH = 32


@pytest.fixture(scope="module")
def references(prompts: list[str], tokenizer: Any) -> dict[str, list[Any]]:
    return generate_three_way_reference_logits(CHECKPOINT, torch.bfloat16, LENGTH, prompts, tokenizer)


@pytest.fixture(scope="module")
def fp32_model() -> Any:
    return load_reference_model(CHECKPOINT, torch.float32).eval()


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


def test_threads_compute_one_after_the_other() -> None:
    """Loading sets torch's default dtype for all threads: two at once gave models of mixed dtypes."""
    inside, most = [0], [0]

    def loader(checkpoint: str, dtype: torch.dtype, *, config: Any) -> Any:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.05)
        model = load_reference_model(checkpoint, dtype, config=config)
        inside[0] -= 1
        return model

    def run() -> None:
        generate_three_way_reference_logits(CHECKPOINT, "bfloat16", 2, [[1, 20]], model_loader=loader)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (most, inside) == ([1], [0])
