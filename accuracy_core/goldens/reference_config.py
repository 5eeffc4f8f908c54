"""The configuration a reference model is built from, its dtype and its attention implementation."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from accuracy_core.errors import ConfigurationError, NotMeasuredError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_ALIASES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}
FP8 = "fp8_e4m3"
#: fields of a configuration that say where it came from, not what the model computes
_NOT_IN_KEY = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "_attn_implementation")


def load_config(
    model_checkpoint: str,
    model_config: Any = None,
    hf_overrides: Mapping[str, Any] | None = None,
    *,
    trust_remote_code: bool = False,
) -> PreTrainedConfig:
    """A fresh configuration: `model_config` (a transformers configuration, or a vLLM ModelConfig that holds one), else
    the checkpoint's, with `hf_overrides` applied. Neither argument is changed.

    Raises ConfigurationError for an override that the architecture does not know: a typo must not pass silently.
    """
    from transformers import AutoConfig, PreTrainedConfig

    base = getattr(model_config, "hf_config", model_config)
    if base is None:
        try:
            base = AutoConfig.from_pretrained(model_checkpoint, trust_remote_code=trust_remote_code)
        except (ValueError, OSError, KeyError) as error:
            raise ConfigurationError(
                f"config of {model_checkpoint} is not usable: {error}",
                fix="check config.json; a model that ships code needs trust_remote_code",
            ) from error
    if not isinstance(base, PreTrainedConfig):
        raise ConfigurationError(
            f"model_config is a {type(base).__name__}, not a transformers configuration",
            fix="pass AutoConfig.from_pretrained(checkpoint), or None; single fields go into hf_overrides",
        )
    values = base.to_dict()
    for name, value in (hf_overrides or {}).items():
        if name not in values:
            near = difflib.get_close_matches(name, values, n=3)
            raise ConfigurationError(
                f"hf_overrides: {type(base).__name__} has no field {name!r}",
                fix=f"did you mean {', '.join(near)}?" if near else "see the checkpoint's config.json",
            )
        nested = isinstance(values[name], dict) and isinstance(value, Mapping) and name.endswith("_config")
        values[name] = {**values[name], **value} if nested else value
    return type(base).from_dict(values)


def config_for_key(config: PreTrainedConfig) -> dict[str, Any]:
    """What of a configuration changes results, as plain JSON values."""
    values = json.loads(config.to_json_string(use_diff=False))
    return {name: value for name, value in values.items() if name not in _NOT_IN_KEY}


def target_dtype_name(dtype: str | torch.dtype, config: PreTrainedConfig | None = None) -> str:
    """One spelling of the target's dtype; "auto" is the checkpoint's own. Raises ConfigurationError if unsupported."""
    name = str(dtype).removeprefix("torch.")
    if name == "auto" and config is not None:
        name = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    name = _ALIASES.get(name, name)
    if name not in _DTYPES:
        raise ConfigurationError(
            f"references cannot be computed in dtype {str(dtype)!r}", fix=f"use one of {', '.join(_DTYPES)}, or auto"
        )
    return name


def torch_dtype(name: str) -> torch.dtype:
    return _DTYPES[name]


def check_kv_cache_dtype(kv_cache_dtype: str, dtype: str) -> str:
    """`auto` if the KV cache holds the target's own dtype, or `fp8_e4m3`. Raises NotMeasuredError for any other."""
    name = _ALIASES.get(kv_cache_dtype, kv_cache_dtype)
    if name in ("auto", dtype):
        return "auto"
    if name in ("fp8", FP8):
        return FP8
    raise NotMeasuredError(
        f"references with a {kv_cache_dtype} KV cache under a {dtype} model are not available",
        fix="compare with kv_cache_dtype='auto'",
    )


def check_not_quantized(config: PreTrainedConfig) -> None:
    """Raise NotMeasuredError for a quantised checkpoint: a load that ignores it would be a wrong reference."""
    quantization = getattr(config, "quantization_config", None)
    if quantization:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        raise NotMeasuredError(
            f"the checkpoint is quantised ({method}); the default loader has no reference for it",
            fix="pass a model_loader that dequantises the same bytes",
        )


def attention_implementation(config: PreTrainedConfig, wanted: str = "auto") -> str:
    """Attention of the reference: `auto` is transformers' choice, except eager where logits are soft-capped.

    transformers' SDPA path takes the soft cap and drops it without a word (transformers 5.19,
    `integrations/sdpa_attention.py`), which would make the reference the wrong side of the comparison.
    """
    if wanted not in ("auto", "sdpa", "eager"):
        raise ConfigurationError(f"attn_implementation {wanted!r} is unknown", fix="use auto, sdpa or eager")
    text_config = config.get_text_config()
    if getattr(text_config, "attn_logit_softcapping", None):
        if wanted == "sdpa":
            raise ConfigurationError("SDPA ignores this model's attention soft cap", fix="use auto or eager")
        return "eager"
    return wanted
