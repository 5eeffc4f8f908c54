"""The page in a real browser: tabs, links to prompts, keyboard, panels, hostile text, speed. Nothing may be fetched."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from report_run_dirs import Recipe, build

from accuracy_core.report import generate_report
from accuracy_core.schemas import KvPattern

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: the report was not tried in a browser"),
]
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
ATTACK = """</script><script>document.title='owned'</script><img src=x onerror="document.title='owned'">"""


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield made
        made.close()


class Opened:
    """A page with whatever it asked the network for and complained about."""

    def __init__(self, browser, root: Path, **options) -> None:
        self.path = Path(generate_report(root))
        self.page = browser.new_page(viewport={"width": 1400, "height": 900}, **options)
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", lambda m: self.problems.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("request", lambda request: self.requests.append(request.url))

    def go(self, anchor: str = ""):
        self.page.goto(f"{self.path.as_uri()}{anchor}")
        return self.page

    def quiet(self) -> bool:
        outside = [url for url in self.requests if not url.startswith(("file:", "data:", "blob:"))]
        assert outside == []
        assert self.problems == []
        return True


@pytest.fixture
def opened(browser, tmp_path):
    pages = []

    def make(recipe: Recipe, **options) -> Opened:
        build(tmp_path, recipe)
        pages.append(Opened(browser, tmp_path, **options))
        return pages[-1]

    yield make
    for one in pages:
        one.page.close()


FAILING = Recipe(n_prompts=12, bad_prompts=(3, 10), bad_tokens=tuple(range(1, 16)), routes_pass=False)


def visible_tab(page) -> list[str]:
    return page.eval_on_selector_all(".tab", "all => all.filter(t => t.offsetParent !== null).map(t => t.id)")


def test_tabs_by_mouse_and_keyboard(opened):
    one = opened(FAILING)
    page = one.go()
    assert visible_tab(page) == ["overview"]
    page.click("#tab-task")
    assert visible_tab(page) == ["task"]
    page.keyboard.press("ArrowRight")
    page.wait_for_url("**#prompt")
    assert visible_tab(page) == ["prompt"]
    page.keyboard.press("Home")
    page.wait_for_url("**#overview")
    assert page.get_attribute("#tab-overview", "aria-selected") == "true"
    assert page.evaluate("document.activeElement.id") == "tab-overview"
    assert one.quiet()


def test_a_link_to_a_prompt_opens_it_with_all_panels_drawn(opened):
    one = opened(FAILING)
    page = one.go("#prompt-3")
    page.wait_for_selector("#prompt-3 .js-plotly-plot")
    assert visible_tab(page) == ["prompt"]
    assert page.eval_on_selector_all("#prompt-3 .js-plotly-plot", "all => all.length") == 7
    assert page.eval_on_selector_all("#prompt-10 .js-plotly-plot", "all => all.length") == 0
    assert page.eval_on_selector_all(".sidebar [aria-current]", "all => all.map(a => a.dataset.prompt)") == ["3"]
    shapes = "document.querySelector('#prompt-3 [data-chart=errors]').layout.shapes"
    lines = page.evaluate(shapes + ".filter(s => s.yref === 'paper').map(s => s.x0)")
    assert lines == [1, 6, 11]
    assert one.quiet()


def test_the_sidebar_can_be_walked_with_the_keyboard(opened):
    one = opened(FAILING)
    page = one.go("#prompt-3")
    page.focus('.sidebar a[data-prompt="3"]')
    page.keyboard.press("ArrowDown")
    page.wait_for_url("**#prompt-4")
    assert page.is_visible("#prompt-4")
    assert not page.is_visible("#prompt-3")
    assert one.quiet()


def test_back_returns_to_where_one_was(opened):
    one = opened(FAILING)
    page = one.go()
    page.click('.card[href="#prompt-10"]')
    assert page.is_visible("#prompt-10")
    page.go_back()
    page.wait_for_selector("#overview", state="visible")
    assert visible_tab(page) == ["overview"]
    assert one.quiet()


def test_the_heat_map_leads_to_a_prompt(opened):
    one = opened(FAILING)
    page = one.go("#prompt")
    page.wait_for_selector("[data-heat].js-plotly-plot")
    values = page.evaluate("Array.from(document.querySelector('[data-heat]').data[0].z[3]).map(Number)")
    assert values[0] < 0.3 < min(values[1:])
    page.evaluate("document.querySelector('[data-heat]').emit('plotly_click', {points: [{y: 'Prompt 10'}]})")
    page.wait_for_url("**#prompt-10")
    assert one.quiet()


def test_the_rows_unfold_into_a_table(opened):
    one = opened(FAILING)
    page = one.go("#prompt-3")
    page.click("#prompt-3 details.rows summary")
    page.wait_for_selector("#prompt-3 details.rows tbody tr")
    assert page.eval_on_selector_all("#prompt-3 details.rows tbody tr", "all => all.length") == 16
    assert page.eval_on_selector_all("#prompt-3 details.rows tbody tr.bad", "all => all.length") == 15


def test_hostile_text_stays_text(opened):
    one = opened(Recipe(n_prompts=2, bad_prompts=(0,), bad_tokens=(0,), text=ATTACK, response=ATTACK))
    page = one.go("#prompt-0")
    page.wait_for_selector("#prompt-0 .js-plotly-plot")
    page.click("#prompt-0 details.rows summary")
    box = page.locator("#prompt-0 [data-chart=ratios] .nsewdrag").bounding_box()
    for share in (0.02, 0.2, 0.5):
        page.mouse.move(box["x"] + box["width"] * share, box["y"] + box["height"] * 0.5)
        page.wait_for_timeout(60)
    page.goto(one.path.as_uri() + "#task")
    page.wait_for_timeout(100)
    assert "owned" not in page.title()
    assert page.eval_on_selector_all("img", "all => all.length") == 0
    assert "</script><script>" in page.inner_text("#task .sample pre")
    assert one.quiet()


def test_dark_mode_follows_the_system_and_the_switch(opened):
    one = opened(FAILING, color_scheme="dark")
    page = one.go("#prompt-3")
    page.wait_for_selector("#prompt-3 .js-plotly-plot")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 20, 27)"
    dark = page.evaluate("document.querySelector('#prompt-3 [data-chart=kl]').layout.font.color")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(246, 247, 249)"
    assert page.evaluate("document.querySelector('#prompt-3 [data-chart=kl]').layout.font.color") != dark
    assert one.quiet()


def test_print_shows_every_tab(opened, tmp_path):
    one = opened(Recipe(n_prompts=2))
    page = one.go()
    page.emulate_media(media="print")
    assert visible_tab(page) == ["overview", "task", "prompt"]
    assert not page.is_visible(".top")
    assert page.pdf()[:5] == b"%PDF-"


def test_charts_are_printed_at_the_width_of_the_paper_and_restored(opened):
    one = opened(Recipe(n_prompts=2))
    page = one.go("#prompt-1")
    page.wait_for_selector("#prompt-1 .js-plotly-plot")
    width = "document.querySelector('#prompt-1 [data-chart=kl] .main-svg').getBoundingClientRect().width"
    screen = page.evaluate(width)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.wait_for_function("() => document.querySelectorAll('#prompt-0 .js-plotly-plot').length === 7")
    page.wait_for_timeout(300)
    assert page.evaluate(width) < 360 < screen
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.wait_for_timeout(300)
    assert page.evaluate(width) == screen
    assert one.quiet()


def test_it_can_be_read_without_scripts(browser, tmp_path):
    build(tmp_path, FAILING)
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(Path(generate_report(tmp_path)).as_uri())
    assert page.is_visible("#overview")
    assert page.is_visible("#task")
    assert page.is_visible("#prompt-11")
    context.close()


def test_a_hundred_prompts_stay_light(opened):
    one = opened(
        Recipe(n_prompts=100, n_tokens=128, bad_prompts=tuple(range(0, 100, 7)), bad_tokens=tuple(range(40, 128)))
    )
    size = one.path.stat().st_size
    assert size < 15e6
    started = time.perf_counter()
    page = one.go()
    page.click("#tab-prompt")
    page.wait_for_selector("[data-heat].js-plotly-plot")
    page.click('.sidebar a[data-prompt="42"]')
    page.wait_for_selector("#prompt-42 .js-plotly-plot")
    spent = time.perf_counter() - started
    print(f"size {size / 1e6:.1f} MB, open + heat map + one prompt {spent:.2f} s")
    assert page.eval_on_selector_all(".js-plotly-plot", "all => all.length") == 8
    assert one.quiet()


LOCATED = Recipe(
    n_prompts=4, bad_prompts=(1, 3), bad_tokens=tuple(range(16)), routes_pass=False,
    module="model.layers.2.mlp.down_proj", pattern=KvPattern.SPREAD,
)  # fmt: skip


def test_module_curves_are_drawn_when_a_prompt_is_opened_and_mark_the_first_module(opened):
    one = opened(LOCATED)
    page = one.go("#prompt-1")
    page.wait_for_selector("#prompt-1 [data-tensor-chart].js-plotly-plot")
    drawn = "all => all.map(e => e.dataset.tensorChart)"
    assert page.eval_on_selector_all("#prompt-1 [data-tensor-chart].js-plotly-plot", drawn) == [
        "local", "depth", "progression",
    ]  # fmt: skip
    assert page.eval_on_selector_all("#prompt-3 [data-tensor-chart].js-plotly-plot", drawn) == []
    texts = page.evaluate(
        "document.querySelector('#prompt-1 [data-tensor-chart=local]').layout.annotations.map(a => a.text)"
    )
    assert texts == ["layers.2.mlp.down_proj"]
    page.click("#theme")
    assert page.is_visible("#prompt-1 [data-tensor-chart=depth]")
    assert one.quiet()


def test_the_module_table_is_sorted_by_mouse_and_keyboard(opened):
    one = opened(LOCATED)
    page = one.go("#prompt-1")
    page.click("#prompt-1 .block:has([data-modules]) details.rows summary")
    rows = "#prompt-1 [data-modules] tbody tr"
    first = "all => all[0].cells[0].textContent"
    assert page.eval_on_selector_all(rows, "all => all.length") == 126
    assert page.eval_on_selector_all(rows, first) == "model.embed_tokens"
    page.click("#prompt-1 [data-modules] th button:text-is('Own ratio')")
    assert page.eval_on_selector_all(rows, first) == "model.layers.2.mlp.down_proj"
    assert page.get_attribute("#prompt-1 [data-modules] th[aria-sort]", "aria-sort") == "descending"
    page.focus("#prompt-1 [data-modules] th button:text-is('Module')")
    page.keyboard.press("Enter")
    assert page.get_attribute("#prompt-1 [data-modules] th[aria-sort]", "aria-sort") == "ascending"
    assert page.eval_on_selector_all(rows, first) == "lm_head"
    assert one.quiet()
