"""Rendering: Jinja2 with autoescape, one script that draws the maps, styles that follow the reader's colour scheme."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from accuracy_core.html_text import embed_json, number, without_surrogates, words
from accuracy_core.prompts.kv_page.view import headline, map_data, pattern_text, worst_heads
from accuracy_core.schemas import KvResult, RunDir, Tolerances, write_text

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER = Path(__file__).parent


def kv_body(result: KvResult, tolerances: Tolerances | None = None) -> Markup:
    """The comparison of one prompt; needs `kv_script` and `kv_style` once in its page."""
    from accuracy_core.capture.kv.limits import KvLimits

    limits = KvLimits.of(tolerances)
    return Markup(
        _environment()
        .get_template("body.html.j2")
        .render(
            result=result,
            headline=headline(result),
            pattern=pattern_text(result.pattern),
            data=map_data(result, limits.l2_ratio),
            heads=worst_heads(result),
            guard=limits.l2_ratio,
        )
    )


def kv_page(result: KvResult, tolerances: Tolerances | None = None) -> str:
    """A page that needs nothing else: no network, no other file."""
    script = kv_script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = (
        _environment()
        .get_template("page.html.j2")
        .render(
            result=result,
            body=kv_body(result, tolerances),
            script=Markup(script),
            style=Markup(_read("page.css") + kv_style()),
            policy=f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; base-uri 'none'; "
            "form-action 'none'",
        )
    )
    return without_surrogates(page)


def save_page(run_dir: RunDir, result: KvResult, tolerances: Tolerances | None = None) -> None:
    """`prompt_<i>/kv_analysis/kv_report.html`."""
    write_text(run_dir.prompt(result.index) / "kv_analysis" / "kv_report.html", kv_page(result, tolerances))


def kv_script() -> str:
    return _read("maps.js")


def kv_style() -> str:
    return _read("maps.css")


@cache
def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8").replace("\r\n", "\n")


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(num=number, embed=embed_json, words=words)
    return made
