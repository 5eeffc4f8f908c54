"""Prompts, responses, logs and parameters are somebody else's text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_run_dirs import Recipe, build

from accuracy_core.report import generate_report
from accuracy_core.report.rendering import embed_json, number, render

ATTACK = """</script><script>document.title='owned'</script><img src=x onerror="document.title='owned'">"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    root = tmp_path_factory.mktemp("attack")
    run_dir = build(
        root,
        Recipe(n_prompts=2, bad_prompts=(0,), bad_tokens=(0,), text=ATTACK, response=ATTACK, errors={"1": ATTACK}),
    )
    config = json.loads(run_dir.run_config.read_text())
    config["model_name"] = ATTACK
    config["parameters"]["engine"]["model"] = ATTACK
    run_dir.run_config.write_text(json.dumps(config))
    return Path(generate_report(root)).read_text(encoding="utf-8")


def test_nothing_of_it_is_markup(page):
    assert "<img" not in page
    assert "<script>document" not in page
    assert "&lt;/script&gt;&lt;script&gt;" in page


def test_scripts_are_the_pages_own(page):
    opened = re.findall(r"<script[^>]*>", page)
    data = [tag for tag in opened if "application/json" in tag]
    assert len(opened) - len(data) == 2
    assert page.count("</script>") == len(opened)


def test_embedded_json_holds_the_text_exactly(page):
    text = re.search(r'<script type="application/json" id="data-0">(.*?)</script>', page, re.S).group(1)
    assert "<" not in text
    tokens = json.loads(text)["tokens"]
    assert "".join(tokens) == ATTACK[: len(tokens)]


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.text() | st.floats() | st.integers() | st.none(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_embedding_never_leaves_its_block_and_round_trips(value):
    text = str(embed_json(value))
    assert not set("<>&\u2028\u2029") & set(text)
    text.encode("utf-8")
    again = json.loads(text)
    assert json.loads(str(embed_json(again))) == again


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_numbers_become_null(value):
    assert str(embed_json({"a": [value]})) == '{"a":[null]}'


def test_half_a_character_does_not_break_the_page():
    assert json.loads(str(embed_json("\ud800x"))) == "?x"


def test_templates_escape_by_themselves():
    assert "&lt;b&gt;" in render("kv_prompt.html.j2", page="<b>", error="", body="")


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (float("nan"), "–"), (float("inf"), "∞"), (0.123456, "0.1235"), (12345, "12,345"), ("<x>", "<x>")],
)
def test_numbers_for_people(value, text):
    assert number(value) == text
