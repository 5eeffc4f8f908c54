from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from accuracy_core.errors import ConfigurationError
from accuracy_core.models import embedded_model
from accuracy_core.models.architectures import (
    ARCHITECTURES,
    TOKENIZER_SIZE,
    architecture,
    architecture_checkpoint,
    architecture_config,
)
from accuracy_core.models.tiny_tokenizer import build_tokenizer


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


def test_the_trained_model_is_one_of_them() -> None:
    assert architecture_checkpoint("embedded") == embedded_model()


def test_a_checkpoint_is_made_once_and_has_the_same_bits_when_made_again(folder: Path, tmp_path: Path) -> None:
    first = architecture_checkpoint("llama", cache_dir=folder)
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert architecture_checkpoint("llama", cache_dir=folder) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp
    again = architecture_checkpoint("llama", cache_dir=tmp_path)
    assert again.name == first.name
    old, new = load_file(first / "model.safetensors"), load_file(again / "model.safetensors")
    assert old.keys() == new.keys()
    assert all(torch.equal(old[name], new[name]) for name in old)
    assert [item.name for item in tmp_path.iterdir()] == [again.name], "nothing half done is left"


def test_another_seed_is_another_checkpoint(folder: Path) -> None:
    zero, one = (architecture_checkpoint("llama", seed=seed, cache_dir=folder) for seed in (0, 1))
    assert zero != one
    name = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(load_file(zero / "model.safetensors")[name], load_file(one / "model.safetensors")[name])


def test_weights_keep_unit_scale_and_nothing_is_neutral(folder: Path) -> None:
    """Standard deviations by hand: 1/sqrt(128), 1.5 times that for queries, 1/sqrt(256) behind the MLP's 256 inputs."""
    weights = {
        name: tensor.float()
        for name, tensor in load_file(architecture_checkpoint("qwen2", cache_dir=folder) / "model.safetensors").items()
    }
    layer = "model.layers.2."
    assert weights[layer + "self_attn.o_proj.weight"].std().item() == pytest.approx(0.0884, rel=0.03)
    assert weights[layer + "self_attn.q_proj.weight"].std().item() == pytest.approx(0.1326, rel=0.03)
    assert weights[layer + "mlp.down_proj.weight"].std().item() == pytest.approx(0.0625, rel=0.03)
    assert weights[layer + "self_attn.k_proj.bias"].abs().min() > 0
    norm = weights[layer + "input_layernorm.weight"]
    assert norm.mean().item() == pytest.approx(1, abs=0.05)
    assert norm.std().item() == pytest.approx(0.1, rel=0.3)
    assert weights["model.embed_tokens.weight"][TOKENIZER_SIZE:].abs().max() == 0
    assert weights["lm_head.weight"][TOKENIZER_SIZE:].abs().max() == 0
    assert weights["lm_head.weight"][:TOKENIZER_SIZE].abs().min(-1).values.max() > 0


def test_the_tokenizer_has_as_many_ids_as_rows_are_used() -> None:
    assert len(build_tokenizer()) == TOKENIZER_SIZE


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name != "embedded"])
def test_configurations(name: str) -> None:
    config: Any = architecture_config(name)
    assert config.vocab_size > TOKENIZER_SIZE, "padding"
    assert config.num_hidden_layers == 4
    assert architecture_config(name, num_hidden_layers=2).num_hidden_layers == 2


def test_unknown_names_get_near_ones() -> None:
    with pytest.raises(ConfigurationError, match="unknown architecture 'gemma4'") as caught:
        architecture("gemma4")
    assert "gemma2" in caught.value.fix


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, made in ARCHITECTURES.items() if not made.trained])
def test_attention_is_peaked_and_bf16_noise_is_small(name: str, folder: Path) -> None:
    """What makes faults visible: logits change a lot when the text before changes, and little in bfloat16."""
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    checkpoint = architecture_checkpoint(name, cache_dir=folder)
    ids = build_tokenizer()("Q: 47+38\nA: 5", return_tensors="pt").input_ids
    other = ids.clone()
    other[0, 4] += 1
    rows = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype, attn_implementation="eager").eval()
        with torch.inference_mode():
            rows[dtype] = [model(one).logits[0, -1].float() for one in (ids, other)]
    exact, changed = rows[torch.float32]
    assert (changed - exact).norm() > 0.05 * exact.norm()
    assert (rows[torch.bfloat16][0] - exact).norm() < 0.2 * exact.norm()
