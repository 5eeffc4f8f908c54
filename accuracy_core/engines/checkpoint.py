"""What the engine needs to know of a checkpoint, and what can be refused before anything is loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas import EngineSpec, ReplayRequest

#: vLLM's variable that allows more positions than the model was trained for
_ALLOW_LONG = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
#: keys of generation_config.json that change what is sampled
_SAMPLING_KEYS = (
    "do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "no_repeat_ngram_size", "max_new_tokens", "min_new_tokens", "suppress_tokens", "bad_words_ids",
)  # fmt: skip


def resolve_checkpoint(spec: EngineSpec) -> str:
    """Local folder of `spec.model`, or its hub id. Raises ConfigurationError when there is no such model."""
    from accuracy_core.models import resolve_model

    return str(resolve_model(spec.model, need_tokenizer=False))


def read_config(model: str | Path) -> dict[str, Any]:
    """`config.json` of a local checkpoint, the text model's part of a multimodal one; {} for a hub id.

    Raises ConfigurationError when a local folder's cannot be read.
    """
    folder = Path(model)
    if not folder.is_dir():
        return {}
    config = _read(folder / "config.json")
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, dict) else config


def effective_config(spec: EngineSpec, model: str | Path) -> dict[str, Any]:
    """The checkpoint's config with `spec.hf_overrides`, as the engine sees it."""
    return {**read_config(model), **spec.hf_overrides}


def context_length(spec: EngineSpec, config: Mapping[str, Any]) -> int | None:
    """Longest sequence in tokens: `max_model_len`, else the checkpoint's. None when neither is known."""
    if spec.max_model_len is not None:
        return spec.max_model_len
    for name in ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length"):
        if isinstance(config.get(name), int):
            return int(config[name])
    return None


def check_sizes(spec: EngineSpec, config: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for sizes that this checkpoint does not have, before anything is started.

    Checked: tensor parallel ranks that the attention heads or the KV heads cannot be split over, and a `max_model_len`
    beyond the positions that the model was trained for. Rotary scaling extends them; $VLLM_ALLOW_LONG_MAX_MODEL_LEN in
    the engine's `env`, which is vLLM's own word for it, allows what lies beyond.
    """
    _check_ranks(spec.tensor_parallel_size, config.get("num_attention_heads"), config.get("num_key_value_heads"))
    positions = context_length(spec.model_copy(update={"max_model_len": None}), config)
    if spec.max_model_len is None or positions is None:
        return
    allowed = spec.env.get(_ALLOW_LONG, os.environ.get(_ALLOW_LONG, "0")).lower() in ("1", "true")
    if spec.max_model_len > positions * _rotary_factor(config) and not allowed:
        raise ConfigurationError(
            f"max_model_len is {spec.max_model_len}, the model was trained for {positions} positions",
            fix=f"lower max_model_len, give rotary scaling in hf_overrides, or set {_ALLOW_LONG}=1 in the engine's env "
            "if you mean it",
        )


def _check_ranks(ranks: int, heads: Any, kv_heads: Any) -> None:
    """Each rank gets as many heads as the others; KV heads, of which there are fewer, may also be repeated evenly."""
    if not isinstance(heads, int):
        return
    kv_heads = kv_heads if isinstance(kv_heads, int) and kv_heads > 0 else heads

    def split(count: int) -> bool:
        return heads % count == 0 and (kv_heads % count == 0 or count % kv_heads == 0)

    if split(ranks):
        return
    what = f"{heads} attention heads" if heads % ranks else f"{kv_heads} KV heads"
    fits = ", ".join(str(count) for count in range(1, heads + 1) if split(count))
    raise ConfigurationError(f"{what} cannot be split over {ranks} tensor parallel ranks", fix=f"use one of {fits}")


def _rotary_factor(config: Mapping[str, Any]) -> float:
    """The largest factor by which rotary scaling stretches the positions; 1.0 without. Kinds may be nested by layer."""
    found = [1.0]
    for name in ("rope_parameters", "rope_scaling"):
        value = config.get(name)
        entries = [value, *value.values()] if isinstance(value, dict) else []
        found += [
            float(entry["factor"])
            for entry in entries
            if isinstance(entry, dict) and isinstance(entry.get("factor"), int | float)
        ]
    return max(found)


def tokens_to_generate(request: ReplayRequest) -> int:
    """Rows that `request` records: its forced tokens, else `max_new_tokens` (default 1)."""
    return len(request.forced_token_ids) or request.max_new_tokens or 1


def check_lengths(spec: EngineSpec, requests: Sequence[ReplayRequest], config: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for requests that the engine cannot hold, before it is loaded.

    Checked: no request at all, prompt plus output longer than the context, a token id outside the vocabulary, two
    requests of the same id.
    """
    if not requests:
        raise ConfigurationError("there is no request to replay", fix="give at least one prompt")
    limit = context_length(spec, config)
    vocabulary = config.get("vocab_size")
    seen: set[str] = set()
    for request in requests:
        name = f"request {request.request_id!r}"
        if request.request_id in seen:
            raise ConfigurationError(f"{name} is given twice", fix="give every request an id of its own")
        seen.add(request.request_id)
        prompt, output = len(request.prompt_token_ids), tokens_to_generate(request)
        if limit is not None and prompt + output > limit:
            raise ConfigurationError(
                f"{name}: {prompt} prompt tokens and {output} to generate are longer than the engine's {limit}",
                fix="raise max_model_len, shorten the prompt, or generate less",
            )
        if isinstance(vocabulary, int):
            tokens = [*request.prompt_token_ids, *request.forced_token_ids]
            strange = [token for token in tokens if not 0 <= token < vocabulary]
            if strange:
                raise ConfigurationError(
                    f"{name}: token ids {strange[:5]} are outside the vocabulary of {vocabulary}",
                    fix="tokenise with this model's tokenizer",
                )


def overridden_generation_defaults(model: str | Path) -> dict[str, Any]:
    """Sampling settings in the checkpoint's generation_config.json that the engine is told to ignore."""
    file = Path(model) / "generation_config.json"
    if not file.is_file():
        return {}
    config = _read(file)
    return {key: config[key] for key in _SAMPLING_KEYS if config.get(key) not in (None, False)}


def _read(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}", fix="complete or replace the checkpoint") from error
    if not isinstance(data, dict):
        raise ConfigurationError(f"{file} holds no JSON object", fix="complete or replace the checkpoint")
    return data
