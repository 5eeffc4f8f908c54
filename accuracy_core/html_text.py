"""Values as text of an HTML page: numbers for people, JSON that is safe inside a script element."""

from __future__ import annotations

import json
import math
from typing import Any

from markupsafe import Markup


def embed_json(value: Any) -> Markup:
    """JSON for a `<script type="application/json">` block: no character that could end the block or the page.

    Non-finite floats become null. `<`, `>`, `&` and the two line separators are written as escapes, so neither
    `</script>` nor `<!--` can appear whatever a prompt holds.
    """
    text = json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(without_surrogates(text))


def without_surrogates(text: str) -> str:
    """Lone surrogates (half a character from a byte-level tokenizer) cannot be written as UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def number(value: Any, digits: int = 4) -> str:
    """A number for people: significant digits, a thin minus for what was not measured."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:.{digits}g}"


def words(name: str) -> str:
    """`agg_bc` -> `agg bc`."""
    return name.replace("_", " ")
