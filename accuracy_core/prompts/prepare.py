"""From whatever the caller has to prompts as token ids, checked before anything expensive starts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accuracy_core.errors import ConfigurationError
from accuracy_core.prompts.curated import curated_prompts
from accuracy_core.prompts.prepared import PreparedPrompt, PreparedPrompts
from accuracy_core.prompts.tokens import encode_messages, encode_text
from accuracy_core.schemas import DeviatedPrompt, DeviatedPrompts

PromptsInput = (
    str
    | os.PathLike[str]
    | DeviatedPrompts
    | PreparedPrompts
    | Sequence[str]
    | Sequence[Sequence[int]]
    | Sequence[DeviatedPrompt]
)


def prepare_prompts(
    prompts: PromptsInput,
    tokenizer: Any,
    *,
    output_length: int,
    max_model_len: int | None = None,
    max_prompts: int | None = None,
    vocab_size: int | None = None,
) -> PreparedPrompts:
    """Prompts as token ids.

    `prompts` is a list of texts, of token-id lists or of DeviatedPrompt; the path of a `deviated_prompts.json`; or its
    loaded document. A document in which no sample deviated gives the curated set, and `note` says so. Ids that the
    evaluation's server reported are taken as they are; otherwise text is tokenised as a server would.

    Raises ConfigurationError for an empty list, an empty prompt, ids outside the vocabulary, and for a prompt that does
    not fit into `max_model_len` together with `output_length`. Deviated prompts that do not fit are left out and named
    in `skipped`, as long as one is left: an evaluation that took an hour is not thrown away for one long sample.
    """
    if output_length < 1:
        raise ConfigurationError(f"output_length is {output_length}: at least one token must be compared")
    if isinstance(prompts, PreparedPrompts):
        _check_lengths(prompts.prompts, output_length, max_model_len)
        return prompts
    if isinstance(prompts, str | os.PathLike):
        path = Path(prompts)
        if isinstance(prompts, str) and not path.suffix == ".json":
            raise ConfigurationError(
                f"prompts must be a list, or the path of a deviated_prompts.json; got the text {prompts[:60]!r}",
                fix="put the text into a list: [text]",
            )
        prompts = read_deviated_prompts(path)
    if isinstance(prompts, DeviatedPrompts):
        chosen = (prompts.prompts or prompts.model_errors)[:max_prompts]
        if not chosen:
            return _curated(tokenizer, output_length, max_model_len, "no sample deviated")
        return _from_deviated(chosen, tokenizer, output_length, max_model_len, prompts.note)
    items = list(prompts)
    if not items:
        raise ConfigurationError(
            "the list of prompts is empty: there is nothing to analyse",
            fix="give at least one prompt; for the curated set pass curated_prompts(tokenizer, max_len)",
        )
    items = items[:max_prompts]
    if all(isinstance(item, DeviatedPrompt) for item in items):
        deviated = [item for item in items if isinstance(item, DeviatedPrompt)]
        return _from_deviated(deviated, tokenizer, output_length, max_model_len, "")
    if all(isinstance(item, PreparedPrompt) for item in items):
        ready = [item for item in items if isinstance(item, PreparedPrompt)]
        _check_lengths(ready, output_length, max_model_len)
        return PreparedPrompts(prompts=ready, curated=all(item.source == "curated" for item in ready))
    plain = [_plain(index, item, tokenizer, vocab_size) for index, item in enumerate(items)]
    _check_lengths(plain, output_length, max_model_len)
    return PreparedPrompts(prompts=plain)


def read_deviated_prompts(path: Path) -> DeviatedPrompts:
    """Read a `deviated_prompts.json`. Raises ConfigurationError naming the file."""
    try:
        return DeviatedPrompts.from_json(path.read_text(encoding="utf-8"), source=str(path))
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error}", fix="give the path of task_analysis/deviated_prompts.json"
        ) from error


def _plain(index: int, item: object, tokenizer: Any, vocab_size: int | None) -> PreparedPrompt:
    if isinstance(item, str):
        if not item:
            raise ConfigurationError(f"prompt {index} is empty", fix="remove it")
        return PreparedPrompt(index=index, token_ids=encode_text(tokenizer, item), text=item, source="text")
    if isinstance(item, Sequence):
        ids = list(item)
        if not ids:
            raise ConfigurationError(f"prompt {index} is empty: it has no token ids", fix="remove it")
        wrong = [token for token in ids if not isinstance(token, int) or isinstance(token, bool) or token < 0]
        if vocab_size is not None:
            wrong += [token for token in ids if isinstance(token, int) and token >= vocab_size]
        if wrong:
            limit = f" below {vocab_size}" if vocab_size is not None else ""
            raise ConfigurationError(f"prompt {index}: {wrong[0]!r} is no token id (integers from 0{limit})")
        text = tokenizer.decode(ids, skip_special_tokens=False) if tokenizer is not None else ""
        return PreparedPrompt(index=index, token_ids=ids, text=text, source="token_ids")
    raise ConfigurationError(
        f"prompt {index} is a {type(item).__name__}",
        fix="prompts are texts, token-id lists or DeviatedPrompt objects, one kind per list",
    )


def _deviated(index: int, item: DeviatedPrompt, tokenizer: Any) -> PreparedPrompt:
    if item.token_ids:
        ids = list(item.token_ids)
    elif item.kind == "chat" and item.messages:
        ids = encode_messages(tokenizer, item.messages)
    else:
        ids = encode_text(tokenizer, item.prompt)
    return PreparedPrompt(
        index=index,
        token_ids=ids,
        text=item.prompt,
        source="deviated",
        label=f"{item.task} #{item.doc_id}",
        task=item.task,
        doc_id=item.doc_id,
        ids_from_server=bool(item.token_ids),
    )


def _from_deviated(
    items: Sequence[DeviatedPrompt], tokenizer: Any, output_length: int, max_model_len: int | None, note: str
) -> PreparedPrompts:
    kept: list[PreparedPrompt] = []
    skipped: list[str] = []
    for item in items:
        prompt = _deviated(len(kept), item, tokenizer)
        problem = _too_long(prompt, output_length, max_model_len)
        if problem:
            skipped.append(f"{prompt.label}: {problem}")
        else:
            kept.append(prompt)
    if not kept:
        raise ConfigurationError(
            "no deviated prompt fits: " + "; ".join(skipped), fix="raise max_model_len or lower output_length"
        )
    return PreparedPrompts(prompts=kept, note=note, skipped=skipped)


def _curated(tokenizer: Any, output_length: int, max_model_len: int | None, why: str) -> PreparedPrompts:
    room = (max_model_len - output_length) if max_model_len is not None else 4096
    prompts = curated_prompts(tokenizer, room)
    return PreparedPrompts(
        prompts=prompts, curated=True, note=f"{why}: {len(prompts)} curated prompts were analysed instead"
    )


def _too_long(prompt: PreparedPrompt, output_length: int, max_model_len: int | None) -> str:
    need = len(prompt.token_ids) + output_length
    if max_model_len is None or need <= max_model_len:
        return ""
    return (
        f"{len(prompt.token_ids)} prompt tokens plus output_length {output_length} make {need}, "
        f"but max_model_len is {max_model_len}"
    )


def _check_lengths(prompts: Sequence[PreparedPrompt], output_length: int, max_model_len: int | None) -> None:
    for prompt in prompts:
        problem = _too_long(prompt, output_length, max_model_len)
        if problem:
            raise ConfigurationError(
                f"prompt {prompt.index} is too long: {problem}", fix="raise max_model_len, or shorten prompt or output"
            )
