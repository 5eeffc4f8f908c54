"""Jinja2 with autoescape, the filters of the templates, and JSON that is safe inside a page."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accuracy_core.html_text import embed_json as embed_json
from accuracy_core.html_text import number as number
from accuracy_core.html_text import without_surrogates as without_surrogates
from accuracy_core.html_text import words as words

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


def duration(seconds: float) -> str:
    """`850 ms`, `12.3 s`, `4 min 05 s`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"


_ROUTES = {
    "two_way": "Rows within static limits",
    "fp32_two_way": "Rows within static limits of FP32 (informative)",
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
