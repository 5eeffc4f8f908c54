from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from accuracy_core.engines.arguments import flags, kv_cache_bytes, offline_arguments, server_flags, spec_arguments
from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas import EngineSpec, FaultSpec, Platform

TINY = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 4,
    "hidden_size": 128,
    "max_position_embeddings": 256,
}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"max_model_len": 256}, ["--max-model-len=256"]),
        ({"enforce_eager": True}, ["--enforce-eager"]),
        ({"enable_prefix_caching": False}, ["--no-enable-prefix-caching"]),
        ({"hf_overrides": {"a": {"b": 1}}}, ['--hf-overrides={"a": {"b": 1}}']),
        ({"logits_processors": ["a:B", "c:D"]}, ["--logits-processors", "a:B", "c:D"]),
        ({"lora_modules": [{"name": "x"}]}, ["--lora-modules", '{"name": "x"}']),
        ({"max_logprobs": -1}, ["--max-logprobs=-1"]),
        ({"quantization": None, "empty": []}, []),
    ],
)
def test_flags(arguments: dict[str, Any], words: list[str]) -> None:
    assert flags(arguments) == words


def test_every_field_reaches_the_server() -> None:
    spec = EngineSpec(
        model="m",
        tokenizer="t",
        dtype="float16",
        tensor_parallel_size=2,
        max_model_len=64,
        max_num_seqs=3,
        kv_cache_dtype="fp8",
        quantization="fp8",
        hf_overrides={"rope_theta": 2.0},
        additional_config={"x": 1},
        trust_remote_code=True,
        seed=7,
        engine_args={"swap_space": 0, "enable_chunked_prefill": False, "block-size": 32},
    )
    words = server_flags(spec, "/models/m", host="127.0.0.1", port=8000, served_model_name="name")
    expected = [
        "--model=/models/m", "--tokenizer=t", "--dtype=float16", "--tensor-parallel-size=2", "--max-model-len=64",
        "--max-num-seqs=3", "--kv-cache-dtype=fp8", "--quantization=fp8", '--hf-overrides={"rope_theta": 2.0}',
        '--additional-config={"x": 1}', "--trust-remote-code", "--seed=7", "--swap-space=0",
        "--no-enable-chunked-prefill", "--block-size=32", "--served-model-name=name", "--generation-config=vllm",
    ]  # fmt: skip
    assert set(expected) <= set(words)
    assert words[-4:] == ["--host", "127.0.0.1", "--port", "8000"]


def test_the_same_spec_drives_server_and_offline_engine() -> None:
    spec = EngineSpec(model="m", max_model_len=64, engine_args={"block_size": 64, "enable_prefix_caching": True})
    given, own = offline_arguments(spec, "m", TINY)
    assert set(flags(given)) <= set(server_flags(spec, "m", host="h", port=1, served_model_name="m", config=TINY))
    assert given["enable_prefix_caching"] is True
    assert "enable_prefix_caching" not in own, "what the user says wins over what an accuracy run would choose"
    assert own["skip_tokenizer_init"]
    assert own["logprobs_mode"] == "raw_logits"


def test_a_user_who_wants_the_checkpoints_sampling_gets_it() -> None:
    spec = EngineSpec(model="m", engine_args={"generation_config": "auto"})
    words = server_flags(spec, "m", host="h", port=1, served_model_name="m")
    assert [word for word in words if word.startswith("--generation-config")] == ["--generation-config=auto"]


def test_a_fault_needs_eager_execution() -> None:
    fault = FaultSpec(name="mlp-scale")
    cuda = EngineSpec(model="m", platform=Platform.CUDA)
    assert "enforce_eager" not in spec_arguments(cuda, "m")
    assert spec_arguments(cuda.model_copy(update={"fault": fault}), "m")["enforce_eager"] is True
    with pytest.raises(ConfigurationError, match="enforce_eager"):
        spec_arguments(EngineSpec(model="m", fault=fault, engine_args={"enforce_eager": False}), "m")


def test_neuron_samples_on_the_cpu_unless_told_otherwise() -> None:
    spec = EngineSpec(model="m", platform=Platform.NEURON, additional_config={"neuron_config": {"bucket": 1}})
    arguments = spec_arguments(spec, "m")
    assert arguments["additional_config"] == {"neuron_config": {"on_device_sampling_config": None, "bucket": 1}}
    assert arguments["async_scheduling"] is False
    chosen = {"neuron_config": {"on_device_sampling_config": {"top_k": 1}}}
    spec = EngineSpec(model="m", platform=Platform.NEURON, additional_config=chosen)
    assert spec_arguments(spec, "m")["additional_config"] == chosen
    with pytest.raises(ConfigurationError, match="neuron_config"):
        spec_arguments(EngineSpec(model="m", platform=Platform.NEURON, additional_config={"neuron_config": 1}), "m")


def test_kv_cache_bytes_by_hand() -> None:
    """K and V: 2 x 4 layers x 2 heads x 32 x 2 bytes = 1 KiB a token; 256 tokens and a spare block of 128: 384 KiB."""
    spec = EngineSpec(model="m", max_num_seqs=512)
    assert kv_cache_bytes(spec, TINY) == 512 * 384 * 1024
    assert kv_cache_bytes(spec.model_copy(update={"dtype": "float32"}), TINY) == 2 * 512 * 384 * 1024
    assert kv_cache_bytes(spec.model_copy(update={"max_num_seqs": 1}), TINY) == 64 << 20
    assert kv_cache_bytes(spec, {}) == 4 << 30


@pytest.mark.parametrize(
    "settings", [{"engine_args": {"gpu_memory_utilization": 0.5}}, {"env": {"VLLM_CPU_KVCACHE_SPACE": "2"}}]
)
def test_a_cache_size_that_was_chosen_is_kept(settings: dict[str, Any]) -> None:
    assert "kv_cache_memory_bytes" not in spec_arguments(EngineSpec(model="m", **settings), "m", TINY)


def test_arguments_may_be_written_as_on_the_command_line():
    """With dashes they were not seen by whoever looks for one: a fault without eager mode, a field given twice."""
    spec = EngineSpec(model="embedded", engine_args={"block-size": 64, "enforce-eager": False})
    assert spec.engine_args == {"block_size": 64, "enforce_eager": False}
    with pytest.raises(ValidationError, match="repeats tensor_parallel_size"):
        EngineSpec(model="embedded", engine_args={"tensor-parallel-size": 2})
    with pytest.raises(ValidationError, match="twice"):
        EngineSpec(model="embedded", engine_args={"block-size": 64, "block_size": 32})
