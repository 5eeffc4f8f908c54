"""The curated prompts: a fixed set for standing checks, and for runs where no sample deviated."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from accuracy_core.errors import ConfigurationError
from accuracy_core.prompts.prepared import PreparedPrompt
from accuracy_core.prompts.tokens import encode_text


@cache
def curated_entries() -> tuple[dict[str, Any], ...]:
    """Rows of `curated.jsonl`: id, purpose, and how the ids are built. Callers must not change them."""
    text = (resources.files("accuracy_core.prompts") / "curated.jsonl").read_text(encoding="utf-8")
    return tuple(json.loads(line) for line in text.splitlines() if line.strip())


def curated_prompts(tokenizer: Any, max_len: int, *, first_index: int = 0) -> list[PreparedPrompt]:
    """The curated set as token ids of `tokenizer`, each at most `max_len` tokens (prompt alone, without output).

    Longer ones are cut at the end, so that the begin-of-sequence token stays. Raises ConfigurationError when `max_len`
    is below 1.
    """
    if max_len < 1:
        raise ConfigurationError(
            f"no room for a curated prompt: {max_len} tokens are left for it",
            fix="raise max_model_len or lower output_length",
        )
    prompts = []
    for offset, entry in enumerate(curated_entries()):
        ids = _ids(tokenizer, entry)[:max_len]
        prompts.append(
            PreparedPrompt(
                index=first_index + offset,
                token_ids=ids,
                text=tokenizer.decode(ids, skip_special_tokens=False),
                source="curated",
                label=entry["id"],
                purpose=entry["purpose"],
            )
        )
    return prompts


def _ids(tokenizer: Any, entry: dict[str, Any]) -> list[int]:
    if "repeat" in entry:
        # Joining ids, not text: a tokenizer with merges would fold repeated text into other tokens.
        unit = tokenizer(entry["repeat"], add_special_tokens=False)["input_ids"]
        return _leading_special(tokenizer) + list(unit) * int(entry["times"])
    text = str(entry["text"])
    ids = encode_text(tokenizer, text)
    if entry.get("join_special"):
        middle = [token for token in (tokenizer.eos_token_id, tokenizer.bos_token_id) if token is not None]
        return ids + middle + list(tokenizer(entry["then"], add_special_tokens=False)["input_ids"])
    if "min_tokens" in entry:
        repeated = text
        while len(ids) < int(entry["min_tokens"]):
            repeated += text
            ids = encode_text(tokenizer, repeated)
        return ids[: int(entry["max_tokens"])]
    return ids[: int(entry.get("keep_tokens", len(ids)))]


def _leading_special(tokenizer: Any) -> list[int]:
    """Special tokens that the tokenizer puts before a text ([] for one that adds none)."""
    with_special = encode_text(tokenizer, "a")
    plain = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    return with_special[: len(with_special) - len(plain)] if with_special[-len(plain) :] == plain else []
