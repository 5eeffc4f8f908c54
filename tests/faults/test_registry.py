from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from accuracy_core.errors import ConfigurationError
from accuracy_core.faults import FAULTS, resolve_fault
from accuracy_core.models import embedded_model
from accuracy_core.models.architectures import ARCHITECTURES, architecture_config
from accuracy_core.schemas import FaultSpec, Phase

EMBEDDED: dict[str, Any] = json.loads((embedded_model() / "config.json").read_text())


def config_of(name: str) -> dict[str, Any]:
    return EMBEDDED if name == "embedded" else json.loads(architecture_config(name).to_json_string(use_diff=False))


def test_thirty_faults_show_in_an_accuracy_run_and_three_under_one_condition_of_serving() -> None:
    assert sum(fault.judged_by == "triage" for fault in FAULTS.values()) == 30
    serving = {fault.condition: name for name, fault in FAULTS.items() if fault.judged_by == "engine_consistency"}
    assert serving == {
        "prefix_caching": "stale-prefix-hit",
        "batching": "batch-dependent",
        "chunked_prefill": "chunk-boundary",
    }


@pytest.mark.parametrize("name", list(FAULTS))
def test_every_fault_knows_where_it_must_show(name: str) -> None:
    fault = FAULTS[name]
    assert fault.name == name
    assert fault.description
    assert fault.unit
    assert fault.engines
    assert (fault.expected_phase is Phase.NONE) is (name == "sampler-default")
    for place in fault.places(resolve_fault(FaultSpec(name=name))):
        assert "{" not in place
        assert place.startswith("model.") or place == "lm_head"


@pytest.mark.parametrize("name", list(FAULTS))
def test_every_fault_applies_to_some_architecture(name: str) -> None:
    assert any(not FAULTS[name].why_not(config_of(architecture)) for architecture in ARCHITECTURES)


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_every_architecture_has_many_faults_and_says_why_not_the_others(name: str) -> None:
    config = config_of(name)
    reasons = {fault: FAULTS[fault].why_not(config) for fault in FAULTS}
    assert sum(not reason for reason in reasons.values()) >= 18
    assert all(len(reason) > 10 for reason in reasons.values() if reason)


@pytest.mark.parametrize(
    ("fault", "applies"),
    [
        ("rope-scaling-dropped", {"llama3-rope", "gpt-oss"}),
        ("sliding-window-shift", {"mistral-window", "gemma2", "gemma3", "gpt-oss"}),
        ("attention-softcap-missing", {"gemma2"}),
        ("logit-softcap-missing", {"gemma2"}),
        ("qkv-bias-dropped", {"qwen2", "gpt-oss"}),
        ("qk-norm-skipped", {"qwen3", "qwen3-moe", "gemma3"}),
        ("tied-embedding-ignored", {"llama-tied", "gemma2", "gemma3"}),
        ("embedding-scale-missing", {"gemma2", "gemma3"}),
        ("moe-topk-not-renormalised", {"mixtral", "qwen3-moe", "gpt-oss"}),
        ("router-order", {"mixtral", "qwen3-moe", "gpt-oss", "deepseek-v2"}),
        ("gqa-mapping", set(ARCHITECTURES) - {"deepseek-v2"}),
        ("gate-up-swapped", set(ARCHITECTURES) - {"mixtral", "qwen3-moe", "gpt-oss"}),
    ],
)
def test_conditions(fault: str, applies: set[str]) -> None:
    assert {name for name in ARCHITECTURES if not FAULTS[fault].why_not(config_of(name))} == applies


def test_a_fault_that_a_model_cannot_have_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigurationError, match="attention scores are not capped"):
        resolve_fault(FaultSpec(name="attention-softcap-missing"), config=EMBEDDED)
    with pytest.raises(ConfigurationError, match="latent attention"):
        resolve_fault(FaultSpec(name="kv-scale"), config=config_of("deepseek-v2"), engine="vllm")


def test_a_setting_that_would_be_ignored_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="sits in no single layer"):
        resolve_fault(FaultSpec(name="rope-theta", layer=1))
    with pytest.raises(ConfigurationError, match="cannot begin at a position"):
        resolve_fault(FaultSpec(name="attention-scale", position=3))


def test_a_default_layer_moves_to_where_the_fault_can_sit() -> None:
    assert resolve_fault(FaultSpec(name="gate-up-swapped"), config=config_of("deepseek-v2")).layer == 0
    assert resolve_fault(FaultSpec(name="gate-up-swapped"), config=EMBEDDED).layer == 1
    with pytest.raises(ConfigurationError, match=r"cannot sit in layer 0 of this model"):
        resolve_fault(FaultSpec(name="router-order", layer=0), config=config_of("deepseek-v2"))


def test_whole_model_faults_show_in_the_first_layer_that_can_have_them() -> None:
    config = {**config_of("gemma2"), "layer_types": ["full_attention", "sliding_attention"] * 2}
    fault = resolve_fault(FaultSpec(name="sliding-window-shift"), config=config)
    assert FAULTS[fault.name].places(fault, config)[0] == "model.layers.1.self_attn.attn"


@pytest.mark.parametrize(("name", "near"), [("mlp_scale", "mlp-scale"), ("kvslot", "kv-slot")])
def test_unknown_fault_names_near_ones(name: str, near: str) -> None:
    with pytest.raises(ConfigurationError, match=f"unknown fault {name!r}") as caught:
        resolve_fault(FaultSpec(name=name))
    assert near in caught.value.fix


def test_unknown_fault_without_a_near_one_lists_all() -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve_fault(FaultSpec(name="zzzzzz"))
    assert all(name in caught.value.fix for name in FAULTS)


def test_defaults_are_filled_in_and_choices_kept() -> None:
    default = resolve_fault(FaultSpec(name="mlp-scale"))
    assert (default.layer, default.strength, default.position) == (1, 1.05, 0)
    chosen = resolve_fault(FaultSpec(name="mlp-scale", layer=3, strength=0.9, position=7, params={"a": 1}))
    assert chosen.to_dict() == {"name": "mlp-scale", "layer": 3, "strength": 0.9, "position": 7, "params": {"a": 1}}


def test_a_layer_that_the_model_does_not_have() -> None:
    with pytest.raises(ConfigurationError, match="layer 4: the model has 4 layers"):
        resolve_fault(FaultSpec(name="mlp-scale", layer=4), num_layers=4)
    assert resolve_fault(FaultSpec(name="mlp-scale"), num_layers=1).layer == 0, "the default gives way"


def test_the_registry_can_be_listed_without_torch(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = "import sys; from accuracy_core.faults import FAULTS; list(FAULTS); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
