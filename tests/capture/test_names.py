"""Name maps against module names recorded from vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from accuracy_core.capture.hf_taps import available_taps
from accuracy_core.capture.names import FAMILIES, plan_taps
from accuracy_core.errors import ConfigurationError, InputMismatchError
from tests.capture.conftest import small_model

_MAPPED = ["llama", "mistral-window", "qwen2", "qwen3", "gemma2", "gemma3", "mixtral", "qwen3-moe", "gpt-oss"]


def _plan(vllm_modules: dict[str, Any], name: str, **options: Any) -> Any:
    recorded = vllm_modules[name]
    return plan_taps(recorded["modules"], recorded["config"], **options)


@pytest.mark.parametrize("name", _MAPPED)
def test_every_tap_of_the_reference_is_found_in_vllm(vllm_modules: dict[str, Any], name: str) -> None:
    plan = _plan(vllm_modules, name)
    reference = available_taps(small_model(name))
    assert set(plan.taps) == set(reference)
    assert plan.missing == {}
    modules = set(vllm_modules[name]["modules"])
    assert {raw.partition(":")[0] for raw in plan.raw} <= modules


def test_all_families_are_covered_by_recorded_models(vllm_modules: dict[str, Any]) -> None:
    recorded = {vllm_modules[name]["config"]["model_type"] for name in _MAPPED}
    assert recorded == {family for family in FAMILIES if not family.startswith("deepseek")}


def test_fused_outputs_are_split_by_heads_and_halves(vllm_modules: dict[str, Any]) -> None:
    plan = _plan(vllm_modules, "llama")  # 4 heads, 2 KV heads of 32; MLP of 256
    raw = {
        "model.layers.0.self_attn.qkv_proj:out0": torch.arange(256.0)[None],
        "model.layers.0.mlp.gate_up_proj:out0": torch.arange(512.0)[None],
    }
    got = plan.assemble(raw)
    assert got["model.layers.0.self_attn.q_proj"][0].tolist() == list(range(128))
    assert got["model.layers.0.self_attn.k_proj"][0].tolist() == list(range(128, 192))
    assert got["model.layers.0.self_attn.v_proj"][0].tolist() == list(range(192, 256))
    assert got["model.layers.0.mlp.gate_proj"][0].tolist() == list(range(256))
    assert got["model.layers.0.mlp.up_proj"][0].tolist() == list(range(256, 512))


def test_one_rank_of_two_has_half_of_each_part(vllm_modules: dict[str, Any]) -> None:
    plan = _plan(vllm_modules, "llama", tensor_parallel_size=2)
    got = plan.assemble({"model.layers.0.self_attn.qkv_proj:out0": torch.arange(128.0)[None]})
    assert got["model.layers.0.self_attn.k_proj"][0].tolist() == list(range(64, 96))


def test_the_output_of_a_layer_is_the_residual_of_the_next_norm(vllm_modules: dict[str, Any]) -> None:
    plan = _plan(vllm_modules, "llama")
    assert plan.sources["model.layers.0"].raw == "model.layers.1.input_layernorm:out1"
    assert plan.sources["model.layers.1"].raw == "model.norm:out1"
    assert plan.sources["model.layers.0.residual_mid"].raw == "model.layers.0.post_attention_layernorm:out1"
    gemma = _plan(vllm_modules, "gemma3")
    assert gemma.sources["model.layers.0.residual_mid"].raw == "model.layers.0.pre_feedforward_layernorm:out1"
    assert gemma.sources["model.embed_tokens"].raw == "model.layers.0.input_layernorm:in0"


def test_replacements_go_back_into_fused_modules(vllm_modules: dict[str, Any], tmp_path: Path) -> None:
    plan = _plan(vllm_modules, "gemma2")  # hidden size 128
    rows = {
        "model.layers.1.self_attn.k_proj": torch.ones(3, 64),
        "model.layers.0.residual_mid": torch.full((3, 128), 2.0),
        "model.embed_tokens": torch.full((3, 128), 128.0**0.5),
    }
    found = plan.write_replacements(rows, tmp_path / "r.safetensors", first_row=5)
    by_tap = {item.tap: item for item in found}
    assert by_tap["model.layers.1.self_attn.qkv_proj:out0"].columns == (128, 192)
    assert all(item.first_row == 5 for item in found)
    tensors = load_file(tmp_path / "r.safetensors")
    norm = "model.layers.0.pre_feedforward_layernorm"
    assert float(tensors[by_tap[f"{norm}:in0"].tensor].max()) == 2.0
    assert float(tensors[by_tap[f"{norm}:in1"].tensor].abs().max()) == 0.0
    assert torch.allclose(tensors[by_tap["model.embed_tokens:out0"].tensor], torch.ones(3, 128))
    with pytest.raises(ConfigurationError, match="cannot be replaced"):
        plan.write_replacements({"lm_head": torch.ones(1, 4)}, tmp_path / "no.safetensors")


def test_a_fused_output_that_is_too_narrow_names_both_widths(vllm_modules: dict[str, Any]) -> None:
    plan = _plan(vllm_modules, "llama")
    with pytest.raises(InputMismatchError, match=r"\(1, 200\).*192:256"):
        plan.assemble({"model.layers.0.self_attn.qkv_proj:out0": torch.zeros(1, 200)})


def test_a_model_without_a_map_uses_equal_names_and_says_what_is_missing(vllm_modules: dict[str, Any]) -> None:
    recorded = vllm_modules["llama"]
    plan = plan_taps(recorded["modules"], {**recorded["config"], "model_type": "unheard_of"})
    assert plan.sources["model.layers.1.self_attn.o_proj"].raw == "model.layers.1.self_attn.o_proj:out0"
    assert "model.layers.1" not in plan.sources  # vLLM's layer returns its two parts unsummed
    assert "unheard_of" in plan.missing["model.layers.1.self_attn.query"]
    narrowed = plan.only(["model.layers.1.self_attn.o_proj", "model.layers.1"])
    assert list(narrowed.missing) == ["model.layers.1"]


def test_an_engine_with_canonical_names_needs_no_map() -> None:
    plan = plan_taps({"model.norm": "", "model.layers.0.self_attn.query": "", "lm_head": ""}, {}, canonical=True)
    assert plan.raw == ["model.norm:out0", "model.layers.0.self_attn.query:out0"]
    logits = torch.ones(2, 5)
    assert torch.equal(plan.assemble({}, logits)["lm_head"], logits)
