"""The request that was really sent, from a sample's `arguments` in any of lm-eval's shapes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class SentRequest:
    """`prompt`: the rendered text; for a chat the JSON text of the messages; for log-likelihoods the context.

    `continuations` are the scored texts, in order: several for multiple choice.
    """

    kind: Literal["text", "chat", "loglikelihood"]
    prompt: str
    messages: list[dict[str, Any]] | None = None
    continuations: list[str] = field(default_factory=list)
    gen_kwargs: dict[str, Any] = field(default_factory=dict)


def sent_request(arguments: Any) -> SentRequest:
    """Never raises: what cannot be understood comes back as the text it is."""
    calls = _calls(arguments)
    if not calls:
        return SentRequest("text", _text(arguments) if arguments not in (None, [], {}) else "")
    first = calls[0]
    context = first[0] if first else ""
    if len(first) > 1 and isinstance(first[1], str):
        continuations = [str(call[1]) for call in calls if len(call) > 1]
        return SentRequest("loglikelihood", _text(context), continuations=continuations)
    if len(first) < 2:  # a rolling log-likelihood has the text only
        return SentRequest("loglikelihood", "", continuations=[_text(context)])
    gen_kwargs = dict(first[1]) if isinstance(first[1], Mapping) else {}
    messages = _messages(context)
    if messages is not None:
        text = json.dumps(messages, ensure_ascii=False)
        return SentRequest("chat", text, messages=messages, gen_kwargs=gen_kwargs)
    return SentRequest("text", _text(context), gen_kwargs=gen_kwargs)


def _calls(arguments: Any) -> list[list[Any]]:
    """One list of positional arguments per call of the model."""
    if isinstance(arguments, Mapping):
        if any(str(key).startswith("gen_args_") for key in arguments):
            return [_positional(value) for _, value in sorted(arguments.items(), key=lambda item: _number(item[0]))]
        return [_positional(arguments)]
    if isinstance(arguments, list | tuple):
        if arguments and all(isinstance(call, list | tuple | Mapping) for call in arguments):
            return [_positional(call) if isinstance(call, Mapping) else list(call) for call in arguments]
        return [list(arguments)] if arguments else []
    return []


def _positional(call: Any) -> list[Any]:
    if isinstance(call, Mapping):
        return [value for key, value in sorted(call.items(), key=lambda item: _number(item[0]))]
    return list(call) if isinstance(call, list | tuple) else [call]


def _number(key: Any) -> int:
    tail = str(key).rpartition("_")[2]
    return int(tail) if tail.isdigit() else 0


def _messages(context: Any) -> list[dict[str, Any]] | None:
    """The messages of a chat: a list of them, or their JSON text, plain or wrapped in a list."""
    if isinstance(context, list | tuple) and len(context) == 1 and isinstance(context[0], str):
        context = context[0]
    if isinstance(context, str):
        if not context.lstrip().startswith("["):
            return None
        try:
            context = json.loads(context)
        except ValueError:
            return None
    if not isinstance(context, list) or not context:
        return None
    if not all(isinstance(item, Mapping) and "role" in item for item in context):
        return None
    return [{"role": item["role"], "content": item.get("content")} for item in context]


def _text(value: Any) -> str:
    if isinstance(value, list | tuple) and len(value) == 1 and isinstance(value[0], str):
        return value[0]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
