"""Empty and cut-off responses, seen from a sample record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LENGTH_KEYS = ("max_gen_toks", "max_tokens", "max_new_tokens")


def response_texts(resps: Any) -> list[str]:
    """Every generated text of a record, repeats included; [] for log-likelihoods."""
    if not isinstance(resps, list | tuple):
        return []
    return [text for group in resps if isinstance(group, list | tuple) for text in group if isinstance(text, str)]


def is_empty(texts: list[str]) -> bool:
    """Nothing but whitespace in one of the responses."""
    return any(not text.strip() for text in texts)


def is_truncated(texts: list[str], gen_kwargs: Any) -> bool:
    """At least as many words as the length limit has tokens, and no stop text: the limit ended the response.

    A guess for results that keep no finish reason; words are never more than tokens, so it misses some.
    """
    if not isinstance(gen_kwargs, Mapping):
        return False
    limit = length_limit(gen_kwargs)
    if limit is None:
        return False
    until = gen_kwargs.get("until") or []
    stops = [until] if isinstance(until, str) else [stop for stop in until if isinstance(stop, str) and stop]
    return any(len(text.split()) >= limit and not any(stop in text for stop in stops) for text in texts)


def length_limit(gen_kwargs: Mapping[str, Any]) -> int | None:
    """Longest answer in tokens, or None when the request does not say."""
    found = next((gen_kwargs[key] for key in _LENGTH_KEYS if gen_kwargs.get(key) is not None), None)
    return found if isinstance(found, int) and found > 0 else None
