"""Jinja2 with autoescape, the filters of the templates, and JSON that is safe inside a page."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"


@cache
def environment() -> Environment:
    """The one environment of all sections. Undefined names raise: a typo must not render as nothing."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(num=number, dur=duration, embed=embed_json, words=words, short=shorten, route=route_name)
    return made


def render(template: str, **values: Any) -> str:
    """Render a template of `templates/`; every value is escaped unless it is Markup."""
    return environment().get_template(template).render(**values)


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


def duration(seconds: float) -> str:
    """`850 ms`, `12.3 s`, `4 min 05 s`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"


def words(name: str) -> str:
    """`agg_bc` -> `agg bc`."""
    return name.replace("_", " ")


_ROUTES = {
    "two_way": "Rows within static limits",
    "sigma_ratio": "σ ratio",
    "agg_bc": "Aggregate BC",
    "typical_ratio": "Typical L2 ratio",
}


def route_name(route: str) -> str:
    """A route, in words."""
    return _ROUTES.get(route, words(route))


def shorten(text: str, length: int = 160) -> str:
    """`text` on one line, cut with an ellipsis."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"
