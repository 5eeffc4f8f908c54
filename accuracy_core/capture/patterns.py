"""Module patterns as users write them: `model.layers.0-31`, exact names, regular expressions."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from accuracy_core.errors import ConfigurationError

_RANGE = re.compile(r"(?<![\w-])(\d+)-(\d+)(?![\w-])")
_REGEX = re.compile(r"[\\^$*+?()\[\]{}|]")


def select_taps(patterns: Sequence[str], taps: Sequence[str]) -> list[str]:
    """The taps that the patterns name, in the order of `taps`; no pattern at all: every tap.

    * a name stands for the tap and everything below it: `model.layers.3` is the layer with its modules;
    * `0-31` in place of a number is a range, both ends included: `model.layers.0-31`, `model.layers.0-3.mlp`;
    * anything with a character that names do not have is a regular expression and must match a tap entirely.

    Raises ConfigurationError for a pattern that matches nothing, with near names, and for one that is no expression.
    """
    if not patterns:
        return list(taps)
    chosen: set[str] = set()
    for pattern in patterns:
        found = _matching(pattern, taps)
        if not found:
            raise ConfigurationError(
                f"module pattern {pattern!r} matches nothing in this model", fix=_near(pattern, taps)
            )
        chosen.update(found)
    return [tap for tap in taps if tap in chosen]


def _matching(pattern: str, taps: Sequence[str]) -> list[str]:
    if _REGEX.search(pattern):
        try:
            expression = re.compile(pattern)
        except re.error as error:
            raise ConfigurationError(f"module pattern {pattern!r} is no regular expression: {error}") from error
        return [tap for tap in taps if expression.fullmatch(tap)]
    bounds = [(int(first), int(last)) for first, last in _RANGE.findall(pattern)]
    if any(first > last for first, last in bounds):
        raise ConfigurationError(f"module pattern {pattern!r}: the range runs backwards")
    escaped = re.escape(_RANGE.sub("\0", pattern)).replace("\\\0", "\0").replace("\0", r"(\d+)")
    expression = re.compile(escaped + r"(?:\..+)?")

    def named(tap: str) -> bool:
        found = expression.fullmatch(tap)
        return found is not None and all(
            first <= int(number) <= last for number, (first, last) in zip(found.groups(), bounds, strict=True)
        )

    return [tap for tap in taps if named(tap)]


def _near(pattern: str, taps: Sequence[str]) -> str:
    near = difflib.get_close_matches(_RANGE.sub(r"\1", pattern), taps, n=4, cutoff=0.4)
    return f"near names: {', '.join(near or list(taps)[:4])}"
