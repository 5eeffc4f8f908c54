"""Texts to calibrate a trained checkpoint on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accuracy_core.errors import ConfigurationError
from accuracy_core.models import embedded_model

if TYPE_CHECKING:
    from accuracy_core.calibration.material import Ids


def bundled_texts() -> list[str]:
    """Solved problems that the bundled model was not trained on, in the form that it was trained in."""
    lines = (embedded_model() / "test.jsonl").read_text(encoding="utf-8").splitlines()
    return [f"Q: {row['question']}\nA: {row['answer']}" for row in map(json.loads, lines)]


def texts_of(file: Path) -> list[str]:
    """Paragraphs of a text file. Raises ConfigurationError when it cannot be read or is empty."""
    try:
        content = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"texts {file} cannot be read: {error}", fix="give a UTF-8 text file") from error
    found = [part.strip() for part in content.split("\n\n") if part.strip()]
    if not found:
        raise ConfigurationError(f"{file} holds no text", fix="give paragraphs, separated by empty lines")
    return found


def corpus_prompts(tokenizer: Any, texts: Sequence[str], tokens: int) -> list[Ids]:
    """One prompt of exactly `tokens` ids from the beginning of each text, with the tokenizer's own special tokens.

    A text that is too short is continued by those after it; prompts start where texts do, since a model that reads
    from the middle of one without its begin-of-sequence token is several times noisier. Texts whose continuation is too
    short as well give none.
    """
    found = []
    for first in range(len(texts)):
        joined, ids = "", list[int]()
        for text in texts[first:]:
            joined = f"{joined}\n{text}" if joined else text
            ids = list(tokenizer(joined).input_ids)
            if len(ids) > tokens:  # the last id may be an end-of-sequence token, which is no text
                found.append(ids[:tokens])
                break
    return found
