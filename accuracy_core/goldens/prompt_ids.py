"""Prompts as token ids, checked before any model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from accuracy_core.errors import ConfigurationError, InputMismatchError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

Prompt = str | Sequence[int]


def tokenize_prompts(prompts: Sequence[Prompt], tokenizer: Any = None) -> list[list[int]]:
    """Token ids per prompt. Texts are tokenised as they stand, with the special tokens that the tokenizer adds (BOS);
    lists of ids are taken as they are.

    Raises ConfigurationError for no prompts, a text without tokenizer, and a prompt of no tokens.
    """
    if isinstance(prompts, str) or not isinstance(prompts, list | tuple):
        raise ConfigurationError(f"prompts must be a list, got {type(prompts).__name__}", fix="pass [prompt]")
    if not prompts:
        raise ConfigurationError("prompts is empty: there is nothing to compute a reference for")
    return [_ids(index, prompt, tokenizer) for index, prompt in enumerate(prompts)]


def _ids(index: int, prompt: Prompt, tokenizer: Any) -> list[int]:
    if isinstance(prompt, str):
        if tokenizer is None:
            raise ConfigurationError(f"prompt {index} is a text, but no tokenizer was given", fix="pass tokenizer=…")
        if not tokenizer(prompt, add_special_tokens=False)["input_ids"]:
            raise ConfigurationError(f"prompt {index} ({prompt!r}) tokenises to nothing", fix="leave it out")
        return [int(token) for token in tokenizer(prompt)["input_ids"]]
    try:
        ids = [_plain_int(token) for token in prompt]
    except TypeError as error:
        raise ConfigurationError(
            f"prompt {index} is neither a text nor a list of token ids: {error}", fix="pass [[0, 81, 26], …]"
        ) from error
    if not ids:
        raise ConfigurationError(f"prompt {index} has no tokens", fix="leave it out")
    return ids


def _plain_int(token: Any) -> int:
    if isinstance(token, bool) or not hasattr(token, "__index__"):
        raise TypeError(f"{token!r} is no token id")
    return int(token.__index__())


def check_lengths(
    prompt_ids: Sequence[Sequence[int]],
    output_length: int,
    config: PreTrainedConfig,
    forced_token_ids: Sequence[Sequence[int]] | None = None,
) -> list[list[int]] | None:
    """Raise ConfigurationError for ids outside the vocabulary and for more tokens than the model's context.

    Returns `forced_token_ids` as lists of int, each `output_length` long, or None.
    """
    if isinstance(output_length, bool) or not isinstance(output_length, int) or output_length < 1:
        raise ConfigurationError(f"output_length is {output_length!r}", fix="use 1 or more")
    text_config = config.get_text_config()
    vocabulary = int(text_config.vocab_size)
    context = getattr(text_config, "max_position_embeddings", None)
    for index, ids in enumerate(prompt_ids):
        _check_vocabulary(f"prompt {index}", ids, vocabulary)
        if context and len(ids) + output_length > context:
            raise ConfigurationError(
                f"prompt {index} has {len(ids)} tokens; with {output_length} more it exceeds "
                f"the model's context of {context}",
                fix="shorten the prompt or the output",
            )
    if forced_token_ids is None:
        return None
    if len(forced_token_ids) != len(prompt_ids):
        raise InputMismatchError(f"{len(forced_token_ids)} lists of forced tokens for {len(prompt_ids)} prompts")
    forced = [[_plain_int(token) for token in tokens] for tokens in forced_token_ids]
    for index, tokens in enumerate(forced):
        if len(tokens) != output_length:
            raise InputMismatchError(
                f"prompt {index} has {len(tokens)} forced tokens, output_length is {output_length}",
                fix="force one token per row",
            )
        _check_vocabulary(f"forced tokens of prompt {index}", tokens, vocabulary)
    return forced


def _check_vocabulary(what: str, ids: Sequence[int], vocabulary: int) -> None:
    outside = [token for token in ids if not 0 <= token < vocabulary]
    if outside:
        raise ConfigurationError(
            f"{what}: token {outside[0]} is outside the model's vocabulary of {vocabulary}",
            fix="use the tokenizer that belongs to the checkpoint",
        )
