"""Texts to calibrate a trained checkpoint on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def corpus_ids(tokenizer: Any, texts: Sequence[str]) -> tuple[int, ...]:
    """Ids of all texts one after the other, without special tokens."""
    found: list[int] = []
    for text in texts:
        found += tokenizer(text, add_special_tokens=False).input_ids
    return tuple(found)
