"""Sections are plugins: one that fails costs only itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_run_dirs import Recipe, build

from accuracy_core.errors import ConfigurationError
from accuracy_core.outcome import Banner
from accuracy_core.report import REPORT_SECTIONS, ReportDocument, generate_report, register_section
from accuracy_core.report.history import HistoryWindow
from accuracy_core.schemas import ReportSection, RunDir, Tab


class Broken(ReportSection):
    name, title, tab = "broken", "Broken <section>", Tab.OVERVIEW

    def __init__(self, where: str) -> None:
        self.where = where

    def applies(self, run_dir: RunDir) -> bool:
        if self.where == "applies":
            raise RuntimeError("cannot tell <b>")
        return True

    def render(self, run_dir: RunDir) -> str:
        raise RuntimeError("cannot render <b>")


class Extra(ReportSection):
    name, title, tab = "extra", "Extra", Tab.PROMPT

    def applies(self, run_dir: RunDir) -> bool:
        return (run_dir.root / "run_config.json").exists()

    def render(self, run_dir: RunDir) -> str:
        return "<p>extra summary</p>"

    def render_prompt(self, run_dir: RunDir, index: int) -> str:
        if index == 1:
            raise ValueError("no data for this one")
        return f"<p>extra of {index}</p>"


@pytest.fixture
def section():
    added = []

    def add(one):
        register_section(one)
        added.append(one.name)

    yield add
    for name in added:
        REPORT_SECTIONS.pop(name)


def made(root: Path) -> tuple[str, ReportDocument]:
    page = Path(generate_report(root)).read_text(encoding="utf-8")
    return page, ReportDocument.from_json((root / "report.json").read_text())


@pytest.mark.parametrize("where", ["applies", "render"])
def test_a_section_that_fails_shows_its_error(tmp_path, section, where):
    section(Broken(where))
    build(tmp_path)
    page, document = made(tmp_path)
    assert "Broken &lt;section&gt; could not be shown" in page
    assert "RuntimeError: cannot render &lt;b&gt;" in page
    assert set(document.section_errors) == {"broken"}
    assert document.banner is Banner.GREEN
    assert "Deviating samples" in page


def test_a_section_of_the_prompt_tab_is_shown_per_prompt(tmp_path, section):
    section(Extra())
    build(tmp_path)
    page, document = made(tmp_path)
    assert "<p>extra summary</p>" in page
    assert "<p>extra of 0</p>" in page[page.index('id="prompt-0"') : page.index('id="prompt-1"')]
    assert "no data for this one" in page[page.index('id="prompt-1"') : page.index('id="prompt-2"')]
    assert "extra" in document.section_errors


def test_a_history_opens_its_tab(tmp_path):
    run_dir = RunDir.at(tmp_path)
    build(tmp_path)
    assert 'id="tab-history"' not in made(tmp_path)[0]
    run_dir.write(tmp_path / "history.json", HistoryWindow())
    assert 'id="tab-history"' in made(tmp_path)[0]


def test_a_name_is_taken_once(section):
    class Other(Extra):
        pass

    section(Extra())
    with pytest.raises(ConfigurationError, match="two report sections"):
        register_section(Other())


@pytest.mark.parametrize(
    ("path", "lost"),
    [
        ("task_analysis/results_summary.json", "task_analysis"),
        ("prompt_analysis/prompt_1/prompt_result.json", "logit_validation"),
        ("prompt_analysis/tolerances.json", "logit_validation"),
        ("stages/evaluate.json", "provenance"),
        ("run_config.json", "provenance"),
    ],
)
def test_a_damaged_file_costs_the_sections_that_need_it(tmp_path, path, lost):
    build(tmp_path, Recipe())
    (tmp_path / path).write_text('{"schema_version": 1, "broken')
    page, document = made(tmp_path)
    assert lost in document.section_errors
    assert "How to read this report" in page
    assert json.loads((tmp_path / "report.json").read_text())["headline"] == document.headline


@pytest.mark.parametrize("path", ["task_analysis/task_status.json", "prompt_analysis/analysis.json"])
def test_a_damaged_decision_is_never_green(tmp_path, path):
    build(tmp_path)
    (tmp_path / path).write_text("[]")
    page, document = made(tmp_path)
    assert document.banner is Banner.GREY
    assert document.exit_code == 3
    assert Path(path).name in document.headline
    assert "What to do" in page
