from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from accuracy_core.engines.checkpoint import (
    check_lengths,
    check_sizes,
    context_length,
    effective_config,
    overridden_generation_defaults,
    read_config,
)
from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas import EngineSpec, ReplayRequest

CONFIG = {"max_position_embeddings": 16, "vocab_size": 10}


def request(prompt: int, *, forced: int = 0, new: int | None = None, name: str = "r") -> ReplayRequest:
    return ReplayRequest(
        request_id=name, prompt_token_ids=[1] * prompt, forced_token_ids=[2] * forced, max_new_tokens=new
    )


@pytest.mark.parametrize("fits", [request(12, forced=4), request(15), request(8, new=8)])
def test_what_fits_exactly_passes(fits: ReplayRequest) -> None:
    check_lengths(EngineSpec(model="m"), [fits], CONFIG)


@pytest.mark.parametrize("long", [request(13, forced=4), request(16), request(8, new=9)])
def test_one_token_more_is_refused(long: ReplayRequest) -> None:
    with pytest.raises(ConfigurationError, match=r"request 'r'.*longer than the engine's 16"):
        check_lengths(EngineSpec(model="m"), [long], CONFIG)


def test_max_model_len_wins_over_the_checkpoint() -> None:
    with pytest.raises(ConfigurationError, match="longer than the engine's 8"):
        check_lengths(EngineSpec(model="m", max_model_len=8), [request(8, forced=4)], CONFIG)
    assert context_length(EngineSpec(model="m"), {"n_positions": 5}) == 5
    assert context_length(EngineSpec(model="m"), {}) is None


HEADS = {"num_attention_heads": 6, "max_position_embeddings": 16}
GROUPED = {"num_attention_heads": 24, "num_key_value_heads": 8}


@pytest.mark.parametrize(
    ("fields", "config"),
    [
        ({"tensor_parallel_size": 3, "max_model_len": 16}, HEADS),
        ({"max_model_len": 32}, {**HEADS, "rope_scaling": {"type": "linear", "factor": 2.0}}),
        ({"max_model_len": 64}, {**HEADS, "rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 4}}}),
        ({"max_model_len": 17, "env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}}, HEADS),
        ({"tensor_parallel_size": 5, "max_model_len": 999}, {}),
        ({"tensor_parallel_size": 8}, GROUPED),
        ({"tensor_parallel_size": 24}, GROUPED),  # KV heads repeated, three ranks each
    ],
)
def test_sizes_that_the_checkpoint_has(fields: dict[str, Any], config: dict[str, Any]) -> None:
    check_sizes(EngineSpec(model="m", **fields), config)


@pytest.mark.parametrize(
    ("fields", "config", "words"),
    [
        ({"tensor_parallel_size": 4}, HEADS, "6 attention heads cannot be split over 4 tensor parallel ranks"),
        ({"tensor_parallel_size": 3}, GROUPED, "8 KV heads cannot be split over 3 .*\\n.*use one of 1, 2, 4, 8, 24$"),
        ({"tensor_parallel_size": 12}, GROUPED, "8 KV heads cannot be split over 12 tensor parallel ranks"),
        ({"max_model_len": 17}, HEADS, "max_model_len is 17, the model was trained for 16 positions"),
        ({"max_model_len": 33}, {**HEADS, "rope_scaling": {"type": "linear", "factor": 2.0}}, "16 positions"),
        ({"max_model_len": 17, "env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "0"}}, HEADS, "16 positions"),
    ],
)
def test_sizes_that_it_does_not_have(fields: dict[str, Any], config: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        check_sizes(EngineSpec(model="m", **fields), config)


def test_strange_requests() -> None:
    spec = EngineSpec(model="m")
    with pytest.raises(ConfigurationError, match="no request"):
        check_lengths(spec, [], CONFIG)
    with pytest.raises(ConfigurationError, match="given twice"):
        check_lengths(spec, [request(1), request(2)], CONFIG)
    with pytest.raises(ConfigurationError, match=r"token ids \[10\] are outside the vocabulary of 10"):
        check_lengths(spec, [ReplayRequest(request_id="r", prompt_token_ids=[9, 10])], CONFIG)
    with pytest.raises(ConfigurationError, match=r"\[-1\]"):
        check_lengths(spec, [ReplayRequest(request_id="r", prompt_token_ids=[1], forced_token_ids=[-1])], CONFIG)


def test_config_of_a_multimodal_checkpoint_is_its_text_models(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 1, "text_config": {"vocab_size": 7}}))
    assert read_config(tmp_path)["vocab_size"] == 7
    spec = EngineSpec(model="m", hf_overrides={"vocab_size": 9})
    assert effective_config(spec, tmp_path)["vocab_size"] == 9
    assert read_config("some/hub-id") == {}


@pytest.mark.parametrize("text", ["{", "[]"])
def test_damaged_config(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigurationError, match=r"config\.json"):
        read_config(tmp_path)


def test_sampling_defaults_that_are_overridden_are_named(tmp_path: Path) -> None:
    assert overridden_generation_defaults(tmp_path) == {}
    config = {"temperature": 0.6, "top_p": 0.9, "do_sample": False, "eos_token_id": 1, "top_k": None}
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    assert overridden_generation_defaults(tmp_path) == {"temperature": 0.6, "top_p": 0.9}
