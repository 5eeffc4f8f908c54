"""References through the cache: the documented usage, and keys that see every change and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from accuracy_core.errors import ConfigurationError, ReferenceError_
from accuracy_core.goldens import (
    generate_three_way_reference_logits,
    get_cached_reference_goldens,
    load_reference_model,
)
from accuracy_core.goldens.disk import DiskTier
from accuracy_core.models import embedded_model

PROMPTS = ["Q: 47+38\nA:", "Q: 52-38\nA:", "Q: 7+7\nA:"]


@pytest.fixture
def get(cache: Path, tokenizer: Any) -> Callable[..., Any]:
    def call(**change: Any) -> Any:
        arguments = {
            "model_id": "tiny", "model_checkpoint": embedded_model(), "model_config": None, "tokenizer": tokenizer,
            "prompts": PROMPTS, "output_length": 4, "cache_dir": cache,
        }  # fmt: skip
        return get_cached_reference_goldens(**{**arguments, **change})

    return call


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return Path(shutil.copytree(embedded_model(), tmp_path / "copy"))


def no_load(*_: object, **__: object) -> Any:
    raise AssertionError("a model was loaded")


def test_documented_usage(tokenizer: Any, tmp_path: Path) -> None:
    """As in the documentation: no cache_dir, so that the environment's directory is used."""
    from transformers import AutoConfig

    goldens = get_cached_reference_goldens(
        model_id="meta-llama/Llama-3.2-1B-Instruct",
        model_checkpoint=str(embedded_model()),
        model_config=AutoConfig.from_pretrained(embedded_model()),
        tokenizer=tokenizer,
        prompts=PROMPTS,
        output_length=4,
    )
    prompts_input_ids = [[list(ids) for ids in prompt] for prompt in goldens["input_ids"]]
    assert prompts_input_ids == [[tokenizer(prompt).input_ids] for prompt in PROMPTS]
    assert [row.shape for row in goldens["fp32_logits"]] == [(4, 1, 260)] * 3
    assert [row.shape for row in goldens["dtype_logits"]] == [(4, 1, 260)] * 3
    assert goldens["fp32_logits"][0].argmax(-1)[:, 0].tolist() == goldens["token_ids"][0]
    assert set(goldens) == {"fp32_logits", "dtype_logits", "input_ids", "token_ids"}
    assert len(DiskTier(tmp_path / "default-cache").keys()) == 3


def test_hit_is_what_was_computed_and_loads_no_model(
    get: Callable[..., Any], tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = get()
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", no_load)
    second = get()
    assert (first.source, second.source) == ("computed", "disk")
    assert first.key == second.key
    monkeypatch.undo()
    direct = generate_three_way_reference_logits(str(embedded_model()), "bfloat16", 4, PROMPTS, tokenizer)
    for name in ("fp32_logits", "dtype_logits"):
        for golden in (first, second):
            assert all(torch.equal(a, b) for a, b in zip(golden[name], direct[name], strict=True))
    assert second["token_ids"] == direct["token_ids"]
    assert second["input_ids"] == direct["input_ids"]
    assert second.metadata[second.prompt_keys[0]].provenance["model_id"] == "tiny"


def test_sets_of_prompts_share_goldens(get: Callable[..., Any]) -> None:
    loads: list[torch.dtype] = []

    def counting_loader(checkpoint: str, dtype: torch.dtype, *, config: Any) -> Any:
        loads.append(dtype)
        return load_reference_model(checkpoint, dtype, config=config)

    first = get(model_loader=counting_loader, loader_version="1")
    mixed = get(model_loader=counting_loader, loader_version="1", prompts=[PROMPTS[1], "Q: 1+1\nA:", PROMPTS[1]])
    assert loads == [torch.float32, torch.bfloat16] * 2  # one load of each for the one prompt that was new
    assert [golden.source for golden in mixed.goldens] == ["disk", "computed", "disk"]
    assert mixed.prompt_keys[0] == mixed.prompt_keys[2] == first.prompt_keys[1]
    assert torch.equal(mixed["fp32_logits"][0], first["fp32_logits"][1])


# --- what is in the key ----------------------------------------------------------------------------------------------


@pytest.fixture
def lookup(get: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`get` without the models: these tests are about keys, and a made-up tensor has one as well."""

    def made_up(request: Any, indices: list[int]) -> Any:
        return ({"fp32_logits": [torch.zeros(1)]} for _ in indices)

    monkeypatch.setattr("accuracy_core.goldens.cached.compute_references", made_up)
    return get


def keys_of(golden: Any) -> list[str]:
    return list(golden.prompt_keys)


@pytest.mark.parametrize(
    "change",
    [
        {"model_id": "another name"},
        {"num_threads": 2},
        {"kv_cache_dtype": "bfloat16"},
        {"dtype": torch.bfloat16},
        {"dtype": "auto"},
        {"hf_overrides": {}},
        {"hf_overrides": {"num_hidden_layers": 4}},
        {"model_checkpoint": "embedded"},
    ],
    ids=str,
)
def test_what_changes_nothing_is_not_in_the_key(change: dict[str, Any], lookup: Callable[..., Any]) -> None:
    before = lookup()
    after = lookup(**change)
    assert keys_of(after) == keys_of(before)
    assert after.source == "disk"


def test_texts_and_their_token_ids_share_a_golden(lookup: Callable[..., Any], tokenizer: Any) -> None:
    before = lookup()
    assert keys_of(lookup(prompts=[tokenizer(prompt).input_ids for prompt in PROMPTS], tokenizer=None)) == keys_of(
        before
    )


def test_copies_of_a_checkpoint_share_a_golden(lookup: Callable[..., Any], checkpoint: Path) -> None:
    before = lookup()
    again = lookup(model_checkpoint=checkpoint)
    assert keys_of(again) == keys_of(before)
    assert again.source == "disk"


@pytest.mark.parametrize(
    "change",
    [
        {"output_length": 5},
        {"dtype": "float16"},
        {"hf_overrides": {"num_hidden_layers": 3}},
        {"hf_overrides": {"rms_norm_eps": 1e-6}},
        {"attn_implementation": "eager"},
        {"forced_token_ids": [[1, 2, 3, 4]] * 3},
        {"model_loader": load_reference_model},
        {"prompts": ["Q: 48+38\nA:", *PROMPTS[1:]]},
    ],
    ids=lambda change: ", ".join(change),
)
def test_what_changes_the_result_is_in_the_key(change: dict[str, Any], lookup: Callable[..., Any]) -> None:
    before, after = keys_of(lookup()), keys_of(lookup(**change))
    assert before[0] != after[0]


def test_unicode_forms_of_a_prompt_have_different_keys(lookup: Callable[..., Any]) -> None:
    composed, decomposed = keys_of(lookup(prompts=["Q: é\nA:", "Q: e\u0301\nA:"]))
    assert composed != decomposed


def _flip_last_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _touch_json(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "touched": 1}))


@pytest.mark.parametrize(
    ("file", "edit"),
    [
        ("model.safetensors", _flip_last_bit),
        ("chat_template.jinja", lambda path: path.write_text("{{ bos_token }}")),
        ("tokenizer.json", _touch_json),
        ("generation_config.json", _touch_json),
        ("config.json", _touch_json),
    ],
)
def test_a_changed_checkpoint_has_other_keys(
    file: str, edit: Callable[[Path], Any], checkpoint: Path, lookup: Callable[..., Any]
) -> None:
    before = keys_of(lookup(model_checkpoint=checkpoint))
    edit(checkpoint / file)
    assert not set(before) & set(keys_of(lookup(model_checkpoint=checkpoint)))


def test_a_changed_model_config_has_other_keys(lookup: Callable[..., Any]) -> None:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(embedded_model())
    before = keys_of(lookup())
    assert keys_of(lookup(model_config=config)) == before
    config.rms_norm_eps = 0.1
    changed = lookup(model_config=config)
    assert not set(before) & set(changed.prompt_keys)
    assert config.rms_norm_eps == 0.1


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_checkpoint": "/no/such/model"}, "does not exist"),
        ({"model_checkpoint": ""}, "no model given"),
        ({"prompts": []}, "empty"),
        ({"output_length": 0}, "output_length"),
        ({"s3_uri": "gs://bucket"}, "S3 URI"),
    ],
)
def test_bad_input(change: dict[str, Any], message: str, get: Callable[..., Any], cache: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        get(model_loader=no_load, loader_version="1", **change)
    assert not DiskTier(cache).keys()


def test_cache_directory_that_is_a_file(get: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="is a file"):
        get(cache_dir=tmp_path / "file", model_loader=no_load, loader_version="1")


def test_useless_reference_is_not_cached(get: Callable[..., Any], cache: Path) -> None:
    def loader(checkpoint: str, dtype: torch.dtype, *, config: Any) -> Any:
        model = load_reference_model(checkpoint, dtype, config=config)
        with torch.no_grad():
            model.model.norm.weight[0] = float("nan")
        return model

    with pytest.raises(ReferenceError_):
        get(model_loader=loader)
    assert not DiskTier(cache).keys()
