"""From an EngineSpec to vLLM's engine arguments: keywords of `vllm.LLM` and flags of the server alike."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from accuracy_core.engines.checkpoint import check_sizes
from accuracy_core.engines.environment import EXTENSION
from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas import EngineSpec, Platform

#: the KV cache of a CPU engine when the spec says nothing: enough for the largest batch, within these bounds (bytes)
_KV_LEAST, _KV_MOST = 64 << 20, 4 << 30
_KV_TOKENS_PER_BLOCK = 128
#: any of these settles the size of the KV cache
_KV_SETTINGS = ("kv_cache_memory_bytes", "gpu_memory_utilization")


def spec_arguments(spec: EngineSpec, model: str, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What `spec` itself says, under vLLM's names. Fields at their neutral value are left to vLLM.

    `model` is the resolved checkpoint, `config` its parsed config.json where there is one. Raises ConfigurationError
    for settings that exclude each other, or that the checkpoint does not allow (see `check_sizes`).
    """
    check_sizes(spec, config or {})
    arguments: dict[str, Any] = {
        "model": model,
        "dtype": spec.dtype,
        "tensor_parallel_size": spec.tensor_parallel_size,
        "max_num_seqs": spec.max_num_seqs,
        "seed": spec.seed,
        "kv_cache_dtype": spec.kv_cache_dtype,
    }
    optional = {
        "tokenizer": spec.tokenizer,
        "max_model_len": spec.max_model_len,
        "quantization": spec.quantization,
        "hf_overrides": spec.hf_overrides or None,
        "additional_config": spec.additional_config or None,
        "trust_remote_code": spec.trust_remote_code or None,
    }
    arguments |= {name: value for name, value in optional.items() if value is not None}
    arguments |= _platform_defaults(spec, config or {})
    if spec.fault is not None:
        if spec.engine_args.get("enforce_eager") is False:
            raise ConfigurationError(
                "a fault needs enforce_eager: hooks of a compiled model are never called",
                fix="leave enforce_eager out of engine_args, or run without the fault",
            )
        arguments["enforce_eager"] = True
    arguments |= spec.engine_args
    arguments["worker_extension_cls"] = EXTENSION
    return arguments


def offline_arguments(
    spec: EngineSpec, model: str, config: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(given, own) for the offline engine: what the spec says, and what an accuracy run adds where the spec is silent.

    Only token ids cross into the engine, so it needs no tokenizer. No prefix caching: a hit would skip the prefill
    that is to be looked at.
    """
    given = spec_arguments(spec, model, config)
    own = {
        "skip_tokenizer_init": True,
        "enable_prefix_caching": False,
        "generation_config": "vllm",
        "max_logprobs": -1,
        "logprobs_mode": "raw_logits",
        "disable_log_stats": True,
        "async_scheduling": False,
    }
    return given, {name: value for name, value in own.items() if name not in given}


def server_flags(
    spec: EngineSpec,
    model: str,
    *,
    host: str,
    port: int,
    served_model_name: str,
    config: Mapping[str, Any] | None = None,
) -> list[str]:
    """Command-line flags of vLLM's OpenAI server.

    `--generation-config vllm`: a checkpoint's own sampling defaults would apply to every request that does not name
    them, and greedy would not be greedy.
    """
    arguments = {"generation_config": "vllm", "served_model_name": served_model_name}
    arguments |= spec_arguments(spec, model, config)
    return [*flags(arguments), "--host", host, "--port", str(port)]


def flags(arguments: Mapping[str, Any]) -> list[str]:
    """Keywords as flags: `a_b=1` -> `--a-b 1`, booleans -> `--a-b` or `--no-a-b`, mappings -> JSON, lists -> many
    values.

    None is left out.
    """
    words: list[str] = []
    for name, value in arguments.items():
        option = f"--{name.replace('_', '-')}"
        if value is None:
            continue
        if isinstance(value, bool):
            words.append(option if value else f"--no-{option[2:]}")
        elif isinstance(value, list | tuple):
            words += [option, *map(_word, value)] if value else []
        else:
            words.append(f"{option}={_word(value)}")  # one word: a value may start with a dash
    return words


def _word(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def _platform_defaults(spec: EngineSpec, config: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults that `engine_args` may overrule."""
    if spec.platform is Platform.NEURON:
        return {"async_scheduling": False, "additional_config": _neuron_config(spec)}
    if spec.platform is Platform.CPU:
        defaults: dict[str, Any] = {"enforce_eager": True}
        if "VLLM_CPU_KVCACHE_SPACE" not in spec.env and not set(_KV_SETTINGS) & set(spec.engine_args):
            defaults["kv_cache_memory_bytes"] = kv_cache_bytes(spec, config)
        return defaults
    return {}


def _neuron_config(spec: EngineSpec) -> dict[str, Any]:
    """The plugin's config with sampling on the CPU: on the device it returns token ids and no logits.

    Written after the plugin's documentation; there was no Neuron hardware to run it on.
    """
    inner = spec.additional_config.get("neuron_config", {})
    if not isinstance(inner, dict):
        raise ConfigurationError(
            "additional_config.neuron_config must be a mapping", fix="see the plugin's documentation"
        )
    return {**spec.additional_config, "neuron_config": {"on_device_sampling_config": None, **inner}}


def kv_cache_bytes(spec: EngineSpec, config: Mapping[str, Any]) -> int:
    """KV cache for `max_num_seqs` sequences of full length, bounded: vLLM's own default zeroes gigabytes at start.

    Two tensors (K, V) x layers x KV heads x head size x tokens x bytes of an element.
    """
    try:
        heads = int(config["num_attention_heads"])
        head_size = int(config.get("head_dim") or config["hidden_size"] // heads)
        kv_heads = int(config.get("num_key_value_heads") or heads)
        layers = int(config["num_hidden_layers"])
        length = int(spec.max_model_len or config["max_position_embeddings"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return _KV_MOST
    element = 4 if spec.dtype == "float32" else 2
    blocks = -(-length // _KV_TOKENS_PER_BLOCK) + 1
    needed = 2 * layers * kv_heads * head_size * element * blocks * _KV_TOKENS_PER_BLOCK * spec.max_num_seqs
    return max(_KV_LEAST, min(_KV_MOST, needed))
