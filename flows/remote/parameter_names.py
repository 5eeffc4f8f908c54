"""Typos in the names of parameters, found with the schema that a deployment publishes, before anything runs."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

#: names that are shown when none is near
_SHOWN = 8


def unknown_names(given: Any, schema: dict[str, Any]) -> list[str]:
    """One line per name in `given` that `schema` (JSON schema with definitions) does not know, with near names."""
    return list(_unknown(given, schema, schema, ""))


def _unknown(given: Any, part: dict[str, Any], whole: dict[str, Any], where: str) -> Iterator[str]:
    if isinstance(given, list):
        items = next((option["items"] for option in _options(part, whole) if "items" in option), None)
        for index, item in enumerate(given if items else []):
            yield from _unknown(item, items or {}, whole, f"{where}[{index}]")
        return
    options = [option for option in _options(part, whole) if "properties" in option]
    if not isinstance(given, dict) or not options:
        return
    known: dict[str, Any] = {}
    for option in options:
        known.update(option["properties"])
    for name, value in given.items():
        path = f"{where}.{name}" if where else str(name)
        if name in known:
            yield from _unknown(value, known[name], whole, path)
        elif not any(option.get("additionalProperties") for option in options):
            near = difflib.get_close_matches(str(name), known, n=3, cutoff=0.5)
            hint = f"did you mean {', '.join(near)}?" if near else f"known are {', '.join(sorted(known)[:_SHOWN])}"
            yield f"{path}: no such parameter; {hint}"


def _options(part: dict[str, Any], whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """`part` itself, or what it refers to; all of the alternatives where there are several."""
    reference = part.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        target: Any = whole
        for step in reference[2:].split("/"):
            target = target.get(step, {}) if isinstance(target, dict) else {}
        yield from _options(target, whole)
        return
    alternatives = [*part.get("anyOf", []), *part.get("allOf", []), *part.get("oneOf", [])]
    if not alternatives:
        yield part
    for alternative in alternatives:
        yield from _options(alternative, whole)
