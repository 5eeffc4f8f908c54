"""What the page and its twin say, for every kind of run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from report_run_dirs import Recipe, build

from accuracy_core.errors import ConfigurationError, EngineDiedError
from accuracy_core.outcome import Banner, Outcome, Verdict
from accuracy_core.prompts.conclusion import NO_CULPRIT, conclude_error
from accuracy_core.report import ReportDocument, generate_report
from accuracy_core.schemas import KvPattern

GREEN = Recipe()
KV_SLOT = Recipe(
    n_prompts=4,
    bad_prompts=(0, 2),
    bad_tokens=tuple(range(1, 16)),
    routes_pass=False,
    fault="kv-slot",
    score_passed=False,
)


def report(root: Path, recipe: Recipe = GREEN, **more) -> tuple[str, ReportDocument]:
    """The page without its libraries, and report.json."""
    run_dir = build(root, recipe)
    page = generate_report(str(root), **more)
    assert page == str(run_dir.report_html)
    text = Path(page).read_text(encoding="utf-8")
    text = re.sub(r'<script type="text/plain" id="plotly-source">.*?</script>', "", text, flags=re.S)
    return text, ReportDocument.from_json((root / "report.json").read_text(encoding="utf-8"))


def visible(page: str, tab: str) -> str:
    """Text of one tab."""
    start = page.index(f'role="tabpanel" id="{tab}"')
    end = page.find('role="tabpanel"', start + 10)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page[start:end]))


def test_green(tmp_path):
    page, document = report(tmp_path)
    assert (document.outcome, document.verdict, document.banner, document.exit_code) == (
        Outcome.NUMERICS, Verdict.PASS, Banner.GREEN, 0,
    )  # fmt: skip
    assert '<body class="banner-green">' in page
    assert document.section_errors == {}
    assert document.triage == ["pass"]
    assert "score met, numerics pass on all 3 analysed prompts" in visible(page, "overview")


def test_red_names_fault_culprit_branch_and_next_command(tmp_path):
    page, document = report(tmp_path, KV_SLOT)
    assert document.banner is Banner.RED
    assert document.exit_code == 2
    assert document.triage == ["fails", "later", "kv_write", "engine_fault"]
    assert document.culprit.phase.value == "decode"
    assert document.fault.name == "kv-slot"
    text = visible(page, "overview")
    assert "Fault injected on purpose: kv-slot in layer 2" in text
    assert "decode (KV or attention suspected)" in text
    assert "KV cache write: slot mapping" in text
    assert "assay run --model embedded --fault kv-slot" in text


def test_only_the_branch_that_was_taken_is_lit(tmp_path):
    page, _ = report(tmp_path, KV_SLOT)
    lit = re.findall(r'<li class="lit">\s*<div class="node"><span class="node-label">([^<]+)', page)
    assert lit == [
        "Logit validation fails", "Tokens 1+ fail, token 0 passes", "Error from the first decode steps on",
        "Ratio beyond 2×, or a guard fired",
    ]  # fmt: skip
    assert page.count('<li class="dim">') == 6 + 6, "of where and how large; roots of module and cache, not compared"


def test_yellow(tmp_path):
    page, document = report(tmp_path, Recipe(bad_prompts=(1,), bad_tokens=(0,)))
    assert (document.banner, document.verdict, document.exit_code) == (Banner.YELLOW, Verdict.SUSPECT, 2)
    assert document.prompts[1].first_bad_token == 0
    assert document.prompts[1].guards == ["l2_ratio"]
    assert 'class="banner-yellow"' in page


def test_score_failed_numerics_clean(tmp_path):
    page, document = report(tmp_path, Recipe(score_passed=False))
    assert document.banner is Banner.RED
    assert document.headline.startswith(NO_CULPRIT)
    assert document.culprit is None
    text = visible(page, "overview")
    assert text.index("the model itself") < text.index("the prompt template") < text.index("the data and its answer")
    assert "McNemar p = 0.625" in text


def test_curated_is_said(tmp_path):
    page, document = report(tmp_path, Recipe(curated=True))
    assert "curated prompts were analysed instead" in visible(page, "overview")
    assert document.conclusion.curated
    assert document.prompts[0].purpose == "digits"


def test_infrastructure_is_grey_and_shows_the_end_of_the_log(tmp_path):
    recipe = Recipe(with_prompts=False, failed_stage=("prompt_analysis", Outcome.INFRASTRUCTURE, "exit status 137"))
    build(tmp_path, recipe)
    (tmp_path / "prompt_analysis").mkdir()
    (tmp_path / "prompt_analysis" / "engine.log").write_text("loading\nKilled <by> the kernel\n")
    generate_report(tmp_path)
    document = ReportDocument.from_json((tmp_path / "report.json").read_text())
    assert (document.outcome, document.banner, document.exit_code) == (Outcome.INFRASTRUCTURE, Banner.GREY, 1)
    page = (tmp_path / "combined_report.html").read_text()
    assert "Killed &lt;by&gt; the kernel" in page
    assert document.verdict is None


def test_configuration_is_grey_with_the_fix(tmp_path):
    decided = conclude_error(ConfigurationError("unknown task 'gsm9k'", fix="did you mean 'gsm8k'?"))
    page, document = report(tmp_path, Recipe(with_task=False, with_prompts=False), conclusion=decided)
    assert (document.banner, document.exit_code) == (Banner.GREY, 3)
    assert "What to do: did you mean &#39;gsm8k&#39;?" in visible(page, "overview")


def test_the_given_conclusion_is_shown(tmp_path):
    decided = conclude_error(EngineDiedError("gone", log_tail="last words"))
    page, document = report(tmp_path, conclusion=decided)
    assert document.conclusion == decided
    assert "last words" in page


def test_an_empty_run_directory_gives_a_grey_page(tmp_path):
    generate_report(tmp_path)
    document = ReportDocument.from_json((tmp_path / "report.json").read_text())
    assert (document.outcome, document.banner) == (Outcome.NOT_MEASURED, Banner.GREY)
    assert document.section_errors == {}


def test_a_missing_run_directory_is_an_error(tmp_path):
    with pytest.raises(ConfigurationError, match="does not exist"):
        generate_report(tmp_path / "nowhere")


def test_a_prompt_with_an_error_keeps_its_card(tmp_path):
    page, document = report(tmp_path, Recipe(errors={"1": "out of KV blocks"}))
    assert document.banner is Banner.GREY
    assert document.prompts[1].errors == {"logit_validation": "out of KV blocks"}
    assert document.prompts[1].verdicts["logit_validation"] is None
    assert "out of KV blocks" in visible(page, "overview")
    assert 'class="dot dot-error"' in page


def test_task_tab(tmp_path):
    page, document = report(tmp_path, KV_SLOT)
    text = visible(page, "task")
    for words in ("0.62", "≥ 0.85", "0.0211", "0.094", "3 worse, 1 better", "McNemar p 0.625", "non-inferior", "group"):
        assert words in text
    assert document.thresholds[0].passed is False
    assert page.count('<details class="sample" open>') == 6
    assert page.count('<details class="sample">') == 6
    assert "truncated" in text
    assert "assay run --model embedded" in text
    assert "--fault kv-slot" in text
    assert "--threshold exact_match,strict-match=0.85" in text


def test_each_document_is_one_sample_with_a_chip_per_filter(tmp_path):
    page, _ = report(tmp_path, Recipe(n_samples=1))
    card = page[page.index('<details class="sample" open>') :].split("</summary>")[0]
    assert card.count('class="chip') == 2


def test_prompt_tab_is_in_numeric_order_with_dots(tmp_path):
    page, _ = report(tmp_path, Recipe(n_prompts=12, bad_prompts=(10,), bad_tokens=(3,)))
    sidebar = page[page.index('class="sidebar"') : page.index('class="panels"')]
    assert re.findall(r'data-prompt="(\d+)"', sidebar) == [str(i) for i in range(12)]
    dots = re.findall(r'class="dot dot-(\w+)"', sidebar)
    assert dots == ["suspect" if i == 10 else "pass" for i in range(12)]
    assert all(f'id="prompt-{i}"' in page for i in range(12))


def test_panels_have_the_columns_they_are_drawn_from(tmp_path):
    page, _ = report(tmp_path, KV_SLOT)
    found = re.search(r'<script type="application/json" id="data-0">(.*?)</script>', page, re.S)
    data = json.loads(found.group(1))
    batch = data["batches"][0]
    assert batch["x"] == list(range(16))
    assert set(batch["errors"]) == {"5", "50", "1000", "all"}
    assert batch["bad"] == list(range(1, 16))
    assert batch["diverged"] == [1, 6, 11]
    assert len(data["tokens"]) == 16
    assert data["limits"] == {
        "rtol": {"5": 0.011, "50": 0.02, "1000": 0.03, "all": 0.05},
        "l2_guard": 3.0, "linf_guard": 5.0, "diagnostic": 1.5, "bc": 0.99,
    }  # fmt: skip
    charts = re.findall(r'data-chart="(\w+)"', page[: page.index('id="prompt-1"')])
    assert charts == ["errors", "ratios", "gap", "bc", "ids", "kl", "top2"]


def test_provenance(tmp_path):
    page, document = report(tmp_path)
    text = visible(page, "overview")
    for words in ("b0ec1e5a0aefe721", "tiny-llama", "transformers", "5.19.0", "41.3 s", "18.9 s", "vllm", "005ad9c1"):
        assert words in text
    assert document.versions["lm-eval"] == "0.4.13"
    assert [stage.stage for stage in document.stages] == [
        "evaluate", "stop_server", "task_analysis", "goldens", "prompt_analysis",
    ]  # fmt: skip


def test_junit_is_written_and_linked_and_costs_no_page(tmp_path, monkeypatch):
    monkeypatch.setattr("accuracy_core.report.junit.junit_text", lambda document: 1 / 0)
    assert "junit.xml" not in report(tmp_path)[0]
    monkeypatch.undo()
    assert '<a href="junit.xml">' in report(tmp_path)[0]
    assert "<testsuites" in (tmp_path / "junit.xml").read_text(encoding="utf-8")


def test_plotly_is_inlined_once_and_nothing_is_loaded(tmp_path):
    build(tmp_path)
    text = Path(generate_report(tmp_path)).read_text(encoding="utf-8")
    assert text.count("plotly.js v") == 1
    page = re.sub(r'<script type="text/plain" id="plotly-source">.*?</script>', "", text, flags=re.S)
    # the icon's namespace is a name, not an address that is fetched
    outside = [url for url in re.findall(r"https?://[^\s\"'<>)]+", page) if "w3.org" not in url]
    assert outside == []
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=\"(?!data:)", page)
    assert "default-src &#39;none&#39;" in page


def test_the_policy_allows_exactly_the_two_scripts(tmp_path):
    import base64
    import hashlib

    build(tmp_path)
    text = Path(generate_report(tmp_path)).read_text(encoding="utf-8")
    scripts = re.findall(r"<script(?: type=\"text/plain\" id=\"plotly-source\")?>(.*?)</script>", text, re.S)
    hashes = {"sha256-" + base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts}
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text).group(1).replace("&#39;", "'")
    assert set(re.findall(r"'(sha256-[^']+)'", policy)) == hashes
    assert len(hashes) == 2


def test_it_is_rebuilt_in_place(tmp_path):
    report(tmp_path, KV_SLOT)
    _, document = report(tmp_path, Recipe(n_prompts=4))
    assert document.banner is Banner.GREEN


def test_kv_section_applies_only_where_the_cache_was_compared(tmp_path):
    page, _ = report(tmp_path)
    assert "KV cache, all prompts" not in page
    (tmp_path / "prompt_analysis/prompt_1/kv_analysis").mkdir(parents=True)
    (tmp_path / "prompt_analysis/prompt_1/kv_analysis/kv_report.html").write_text("x")
    page, _ = report(tmp_path, Recipe(bad_prompts=(1,), bad_tokens=(3,), routes_pass=False, pattern=KvPattern.SHIFTED))
    assert "KV cache, all prompts" in page
    assert 'href="prompt_analysis/prompt_1/kv_analysis/kv_report.html"' in page
    assert "prompt_0/kv_analysis" not in page


def test_large_sample_lists_are_cut_and_say_so(tmp_path):
    page, _ = report(tmp_path, Recipe(n_samples=200))
    assert page.count('class="sample"') == 300
    assert page.count('class="sample" open') == 25
    assert "The first 150 are shown" in page
