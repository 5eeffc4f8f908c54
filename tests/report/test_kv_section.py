"""The KV section and its page: numbers from the typed result, words, escaping, and maps that a browser really draws."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.prompts.evidence import KV
from accuracy_core.prompts.kv_page import headline, kv_body, kv_page
from accuracy_core.prompts.kv_page.view import MAX_COLUMNS, map_data
from accuracy_core.prompts.prepared import PreparedPrompt, PreparedPrompts
from accuracy_core.report import generate_report
from accuracy_core.schemas import (
    GuardHit,
    KvHeadMetrics,
    KvPattern,
    KvPlace,
    KvResult,
    Phase,
    PluginStatus,
    PromptAnalysisStatus,
    RunDir,
)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ATTACK = "</script><script>document.title='owned'</script>"


def made(**change) -> KvResult:
    """Two layers, two heads, 6 positions; layer 1 is wrong from the first decode step on."""
    heads = [
        KvHeadMetrics(
            layer=layer, head=head, which=which, cosine=0.99, l2_ratio=40.0 if layer else 0.9,
            bc=0.5 if layer else 0.999, verdict=Verdict.FAIL if layer else Verdict.PASS,
        )
        for layer in (0, 1) for which in ("key", "value") for head in (0, 1)
    ]  # fmt: skip
    fields = {
        "index": 0, "verdict": Verdict.FAIL, "phase": Phase.DECODE, "prompt_length": 4, "positions": 6,
        "block_size": 16,
        "heads": heads, "layers": [0, 1],
        "position_ratio": {w: [[0.9] * 6, [math.nan, 1.0, 1.0, 1.0, 123.456, math.inf]] for w in ("key", "value")},
        "pattern": KvPattern.SHIFTED, "first_bad": KvPlace(layer=1, head=0, position=4, which="key"),
        "cache_fault": True, "written": False,
        "guards": [GuardHit(guard="cache_write", prompt=0, token=0, value=1.0, limit=0.0, detail=ATTACK)],
        "evidence": [f"layer 1 key: {ATTACK}"],
    }  # fmt: skip
    return KvResult(**{**fields, **change})


@pytest.fixture
def run_dir(tmp_path):
    run = RunDir.at(tmp_path / "run").create()
    result = made()
    run.write(
        run.prompt_analysis / "prompts.json",
        PreparedPrompts(prompts=[PreparedPrompt(index=0, token_ids=[1, 2, 3, 4], source="token_ids")]),
    )
    run.write(run.prompt_result(0, KV), result)
    run.write(
        run.prompt_analysis_json,
        PromptAnalysisStatus(
            verdict=Verdict.FAIL,
            n_prompts=1,
            plugins={
                KV: PluginStatus(
                    plugin=KV, verdict=Verdict.FAIL, per_prompt={"0": Verdict.FAIL}, worst=result.guards[0],
                    aggregates={"max_l2_ratio": 40.0},
                )
            },
        ),
    )  # fmt: skip
    page = run.prompt(0) / "kv_analysis" / "kv_report.html"
    page.parent.mkdir(parents=True)
    page.write_text(kv_page(result))
    return run


def test_the_maps_hold_what_was_measured():
    data = map_data(made(), 3.0)
    assert data["sides"]["key"]["heads"] == [[0.9, 0.9], [40.0, 40.0]]
    assert data["sides"]["value"]["bc"] == [[0.999, 0.999], [0.5, 0.5]]
    assert data["sides"]["key"]["positions"][1] == [None, 1.0, 1.0, 1.0, 123.0, 1e30]  # three digits are drawn
    assert (data["prompt"], data["step"], data["bad"]["position"]) == (4, 1, 4)


def test_long_sequences_show_the_worst_of_neighbouring_positions():
    long = [1.0] * 1000
    long[777] = 50.0
    data = map_data(made(positions=1000, position_ratio={"key": [long], "value": [long]}, layers=[0]), 3.0)
    columns = data["sides"]["key"]["positions"][0]
    assert len(columns) <= MAX_COLUMNS
    assert columns[777 // data["step"]] == 50.0
    assert columns.count(1.0) == len(columns) - 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ("First bad place: K of layer 1, head 0, position 4 (decode)", "shifted", "The cache itself is at fault")),
        ({"cache_fault": False, "pattern": KvPattern.SPREAD}, ("the fault lies before it", "before it was cached")),
        ({"cache_fault": None}, ("cannot be told",)),
        ({"verdict": Verdict.PASS}, ("K and V of 4 heads at 6 positions are within",)),
        ({"verdict": None, "outcome": Outcome.NOT_MEASURED}, ("Not measured",)),
        ({"error": "out of blocks"}, ("Not compared: out of blocks",)),
        ({"first_bad": None}, ("see the guards",)),
    ],
)  # fmt: skip
def test_the_result_in_words(change, says):
    text = headline(made(**change))
    assert all(part in text for part in says)


def test_nothing_untrusted_becomes_markup():
    body = str(kv_body(made(missing={ATTACK: ATTACK})))
    assert ATTACK not in body
    assert body.count("<script") == 1  # the data block
    data = body.split("data-kv-data>")[1].split("</script>")[0]
    assert json.loads(data)["layers"] == [0, 1]


def test_the_report_has_the_section(run_dir):
    html = Path(generate_report(run_dir)).read_text()
    assert html.count("data-kv-map=") > 6
    assert "First bad place: K of layer 1" in html
    assert "prompt_analysis/prompt_0/kv_analysis/kv_report.html" in html
    assert ATTACK not in html
    assert json.loads(run_dir.report_json.read_text())["section_errors"] == {}


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: the maps were not tried in a browser")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("where", ["page", "report"])
def test_a_browser_draws_the_maps_and_tells_cells_by_keyboard(run_dir, scheme, where):
    from playwright.sync_api import sync_playwright

    path = Path(generate_report(run_dir)) if where == "report" else None
    path = path or Path(str(run_dir.prompt(0) / "kv_analysis" / "kv_report.html"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(color_scheme=scheme, viewport={"width": 1200, "height": 2400})
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(path.as_uri() + ("#prompt-0" if where == "report" else ""))
        page.wait_for_timeout(1000)
        colours = page.evaluate(
            """() => [...document.querySelectorAll('[data-kv-map]')].map((canvas) => {
                const at = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
                const found = new Set();
                for (let i = 0; i < at.length; i += 4)
                    if (at[i + 3] > 200) found.add(`${at[i]},${at[i + 1]},${at[i + 2]}`);
                return found.size;
            })"""
        )
        assert len(colours) == 7
        assert min(colours) > 5
        page.focus("[data-kv-map='key.positions']")
        page.keyboard.press("ArrowDown")
        for _ in range(4):
            page.keyboard.press("ArrowRight")
        text = page.inner_text("figure:has([data-kv-map='key.positions']) .kvmap-at")
        assert text == "layer 1, position 4, decode: 123×"
        assert page.title() != "owned"
        assert said == []
        browser.close()
