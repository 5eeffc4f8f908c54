"""Text and chat messages to the token ids that a server would see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accuracy_core.errors import ConfigurationError


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Ids of `text` with the tokenizer's own special tokens, and never a second begin-of-sequence token.

    A rendered chat template starts with the BOS text already; adding another one is the most common false alarm.
    """
    bos = getattr(tokenizer, "bos_token", None)
    already = bool(bos) and text.startswith(str(bos))
    ids = list(tokenizer(text, add_special_tokens=not already)["input_ids"])
    if not ids:
        raise ConfigurationError(
            "a prompt is empty: its text has no tokens", fix="remove it, or give at least one token"
        )
    return [int(token) for token in ids]


def encode_messages(tokenizer: Any, messages: Sequence[dict[str, Any]]) -> list[int]:
    """Ids of chat `messages` through the tokenizer's template, with the generation prompt."""
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigurationError(
            "a chat prompt was given but the tokenizer has no chat template",
            fix="use the tokenizer that belongs to the chat checkpoint, or give token ids",
        )
    text = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
    return [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]


def decode_tokens(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Text of each token on its own, for display. Without a tokenizer: the ids as text."""
    if tokenizer is None:
        return [str(token) for token in ids]
    return [str(tokenizer.decode([int(token)], skip_special_tokens=False)) for token in ids]


def load_tokenizer(model: str, tokenizer: str | None = None) -> Any:
    """Tokenizer of a checkpoint folder or hub id. Raises ConfigurationError with what is missing."""
    from transformers import AutoTokenizer

    from accuracy_core.models import resolve_model

    path = resolve_model(tokenizer or model)
    try:
        return AutoTokenizer.from_pretrained(str(path))
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(
            f"the tokenizer of {path} cannot be loaded: {error}", fix="check the tokenizer files of the checkpoint"
        ) from error
