"""Tiny seeded checkpoints of many architectures, on which faults in attention and positions show in the logits.

The usual initialisation (standard deviation 0.02) leaves attention nearly uniform and every product tiny: whole groups
of faults then change nothing that a comparison could see. Here every matrix has standard deviation 1/sqrt(fan_in), so
that activations keep unit scale through the layers; queries and keys are 1.5 times larger, which gives attention
scores a standard deviation of about 2 and attention a peak; norm weights scatter by 10 % around their neutral value,
and biases and attention sinks are not zero, so that leaving one out changes something.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accuracy_core.errors import ConfigurationError
from accuracy_core.models.resolve import EMBEDDED, embedded_model
from accuracy_core.models.tiny_tokenizer import BOS_ID, CONTEXT_LENGTH, EOS_ID, PAD_ID, build_tokenizer
from accuracy_core.paths import cache_root
from accuracy_core.schemas import fingerprint

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel

#: counts up when the initialisation below changes: old checkpoints in the cache are then not used any more
RECIPE = 1
#: ids that the tokenizer can produce; the checkpoints have a few rows more, all zero, as padding
TOKENIZER_SIZE = 260
VOCAB_SIZE = 272
QUERY_KEY_GAIN = 1.5
NORM_SCATTER = 0.1
BIAS_SCALE = 0.3


@dataclass(frozen=True)
class Architecture:
    """A tiny model: the configuration class of transformers, and what differs from the common settings (see `_BASE`).

    A setting of None leaves the common one out. `trained`: the bundled model, which is not made here.
    """

    name: str
    config_class: str
    settings: Mapping[str, Any]
    trained: bool = False


_BASE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": CONTEXT_LENGTH,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
    "pad_token_id": PAD_ID,
    "tie_word_embeddings": False,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
_YARN_ROPE = {
    "rope_type": "yarn", "rope_theta": 150000.0, "factor": 2.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 128,
}  # fmt: skip
_GEMMA = {"query_pre_attn_scalar": 32, "sliding_window": 16, "tie_word_embeddings": True}
_MOE = {"num_experts_per_tok": 2}
_DEEPSEEK = {
    "head_dim": None, "num_key_value_heads": 4, "kv_lora_rank": 512, "q_lora_rank": None, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 32, "v_head_dim": 32, "n_routed_experts": 4, "moe_intermediate_size": 64, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "topk_method": "greedy", **_MOE,
}  # fmt: skip

ARCHITECTURES: dict[str, Architecture] = {
    item.name: item
    for item in (
        Architecture(EMBEDDED, "LlamaConfig", {}, trained=True),
        Architecture("llama", "LlamaConfig", {}),
        Architecture("llama-tied", "LlamaConfig", {"tie_word_embeddings": True}),
        Architecture("llama3-rope", "LlamaConfig", {"rope_parameters": _LLAMA3_ROPE}),
        Architecture("qwen2", "Qwen2Config", {"head_dim": None}),
        Architecture("qwen3", "Qwen3Config", {}),
        Architecture("mistral-window", "MistralConfig", {"sliding_window": 16}),
        Architecture(
            "gemma2", "Gemma2Config", {**_GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 10.0}
        ),
        Architecture("gemma3", "Gemma3TextConfig", {**_GEMMA, "sliding_window_pattern": 2}),
        Architecture("mixtral", "MixtralConfig", {**_MOE, "num_local_experts": 4}),
        Architecture(
            "qwen3-moe",
            "Qwen3MoeConfig",
            {**_MOE, "num_experts": 4, "moe_intermediate_size": 64, "decoder_sparse_step": 1, "norm_topk_prob": True},
        ),
        Architecture(
            "gpt-oss",
            "GptOssConfig",
            {**_MOE, "num_local_experts": 4, "sliding_window": 16, "rope_parameters": _YARN_ROPE},
        ),
        Architecture("deepseek-v2", "DeepseekV2Config", _DEEPSEEK),
    )
}


def architecture(name: str) -> Architecture:
    """Raises ConfigurationError, with near names, when there is no architecture `name`."""
    import difflib

    if name not in ARCHITECTURES:
        near = difflib.get_close_matches(name, ARCHITECTURES, n=3, cutoff=0.4)
        raise ConfigurationError(
            f"unknown architecture {name!r}",
            fix=f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(ARCHITECTURES)}",
        )
    return ARCHITECTURES[name]


def architecture_config(name: str, **overrides: Any) -> PreTrainedConfig:
    """The transformers configuration of architecture `name`, with `overrides` of its settings."""
    import transformers

    chosen = architecture(name)
    settings = {**_BASE, **chosen.settings, **overrides}
    return getattr(transformers, chosen.config_class)(
        **{key: value for key, value in settings.items() if value is not None}
    )


def architecture_checkpoint(name: str, *, seed: int = 0, cache_dir: Path | None = None) -> Path:
    """Folder of the bfloat16 checkpoint of architecture `name`, made on first use and kept in the cache.

    The same name, seed and versions give the same bits. The name of the folder is a hash over the recipe: settings,
    seed, initialisation and the version of transformers (whose configuration classes decide what is written).
    """
    if architecture(name).trained:
        return embedded_model()
    import transformers

    recipe = {
        "recipe": RECIPE,
        "config": json.loads(architecture_config(name).to_json_string(use_diff=False)),
        "seed": seed,
        "transformers": transformers.__version__,
    }
    root = (cache_dir or cache_root() / "models").expanduser()
    folder = root / f"{name}-{fingerprint(recipe)[:16]}"
    if not folder.is_dir():
        _make(name, seed, folder)
    return folder


def _make(name: str, seed: int, folder: Path) -> None:
    """Write the checkpoint beside `folder` and move it into place: a killed writer leaves nothing half done there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _save(name, seed, temporary)
        try:
            os.replace(temporary, folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process was faster, with the same bits
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _save(name: str, seed: int, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    with torch.random.fork_rng(devices=[]):
        model = AutoModelForCausalLM.from_config(architecture_config(name))
        initialise(model, seed)
    model = model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(bos_token_id=BOS_ID, eos_token_id=EOS_ID, pad_token_id=PAD_ID)
    model.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)


def initialise(model: PreTrainedModel, seed: int) -> None:
    """Give every parameter of `model` its value in place; each depends on its own name and `seed` alone."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            generator = torch.Generator().manual_seed(_seed_of(name, seed))
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(_centre(name, parameter) + noise * _scale(name, parameter, model.config))
            if parameter.ndim == 2 and parameter.shape[0] == model.config.vocab_size:
                parameter[TOKENIZER_SIZE:] = 0.0


def _seed_of(name: str, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:7], "big")


def _centre(name: str, parameter: torch.Tensor) -> float:
    """Mean of a parameter: a norm's neutral weight (1, or 0 in a class that adds 1 itself), else 0."""
    if "norm" not in name:
        return 0.0
    gain = QUERY_KEY_GAIN - 1 if any(part in name for part in ("q_norm", "k_norm")) else 0.0
    return float(parameter.detach().float().mean()) + gain


def _scale(name: str, parameter: torch.Tensor, config: PreTrainedConfig) -> float:
    """Standard deviation of a parameter; see the module's text."""
    width = config.hidden_size
    if "norm" in name:
        return NORM_SCATTER
    if name.endswith("sinks"):
        return 1.0
    if parameter.ndim == 1 or name.endswith("bias"):
        return BIAS_SCALE
    if "embed_tokens" in name:
        # where the head is the same matrix, logits must not grow with the width
        return float(width**-0.5) if config.tie_word_embeddings else 1.0
    fan_in = parameter.shape[-1]
    if parameter.ndim == 3:  # experts: classes differ in whether inputs or outputs come last
        fan_in = width if "gate_up" in name else parameter.shape[1] * parameter.shape[2] // width
    gain = QUERY_KEY_GAIN if any(part in name for part in ("q_proj", "k_proj")) else 1.0
    return gain * float(fan_in**-0.5)
