"""The preflight in report, junit and report.json: every finding with its fix, worst first, nothing of it markup."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lxml import etree, html
from report_run_dirs import START, Recipe, build

from accuracy_core.errors import ConfigurationError
from accuracy_core.outcome import Outcome
from accuracy_core.prompts.preflight.registry import doubtful, remark, unmeasured, wrong
from accuracy_core.prompts.preflight.report import CheckResult, PreflightReport
from accuracy_core.report import generate_report
from accuracy_core.schemas import Finding, RunDir, StageRecord

ATTACK = "<img src=x onerror=alert(1)>"


def check(name: str, *findings: Finding) -> CheckResult:
    return CheckResult(check=name, asks=f"is {name} right?", needs="checkpoint", findings=list(findings))


REPORT = PreflightReport(
    results=[
        check("lengths"),
        check("server", unmeasured("server", "was not asked")),
        check("rows", remark("rows", "12 rows are padding")),
        check("dtype", doubtful("dtype", "bfloat16 on float32", "use float32")),
        check("rope", wrong("rope", "the factor is gone", "restore it")),
        check("template", wrong("template", ATTACK, "give the right one")),
    ]
)


def _words(element: Any) -> str:
    return " ".join(" ".join(element.itertext()).split())


def page_of(folder: Path, report: PreflightReport):
    run_dir = build(folder, Recipe())
    run_dir.write(run_dir.preflight_json, report)
    page = html.fromstring(Path(generate_report(folder)).read_text(encoding="utf-8"))
    (block,) = page.find_class("block-preflight")
    return block


def test_findings_come_worst_first_with_what_to_do(tmp_path):
    block = page_of(tmp_path, REPORT)
    rows = [_words(row) for row in block.xpath(".//tbody/tr")]
    assert rows == [
        "rope is rope right? wrong the factor is gone restore it",
        f"template is template right? wrong {ATTACK} give the right one",
        "dtype is dtype right? doubtful bfloat16 on float32 use float32",
        "server is server right? not measured was not asked –",
        "rows is rows right? noted 12 rows are padding –",
    ]
    assert not block.xpath(".//img")
    (folded,) = block.xpath(".//details")
    assert _words(folded) == "Checks that found nothing 1 lengths is lengths right?"


def test_what_was_accepted_says_so(tmp_path):
    block = page_of(tmp_path, REPORT.accepting(["rope", "template"]))
    chips = [chip.text for chip in block.xpath(".//tbody//span[contains(@class, 'chip')]")]
    assert chips[:2] == ["accepted", "accepted"]
    assert "wrong" not in chips


def test_a_run_without_preflight_shows_none(tmp_path):
    build(tmp_path, Recipe())
    page = html.fromstring(Path(generate_report(tmp_path)).read_text(encoding="utf-8"))
    assert page.find_class("block-preflight") == []


def test_junit_has_a_case_per_check(tmp_path):
    page_of(tmp_path, REPORT)
    root = etree.parse(str(tmp_path / "junit.xml"))
    (suite,) = root.xpath("//testsuite[@name='assay.preflight']")
    found = {
        case.get("name"): next(((item.tag, item.get("type")) for item in case), ("passed", ""))
        for case in suite.findall("testcase")
    }
    assert found == {
        "lengths": ("passed", ""), "server": ("skipped", "not_measured"), "rows": ("passed", ""),
        "dtype": ("passed", ""), "rope": ("error", "configuration"), "template": ("error", "configuration"),
    }  # fmt: skip
    assert "restore it" in suite.xpath("string(testcase[@name='rope']/error)")


def test_report_json_holds_the_findings(tmp_path):
    page_of(tmp_path, REPORT)
    document = json.loads((tmp_path / "report.json").read_text())
    assert [item["check"] for item in document["preflight"]["results"]] == REPORT.checks


def test_a_report_that_is_built_again_says_what_the_run_said(tmp_path):
    """From the files alone: the same message and the same fix as the error that ended the run."""
    run_dir = RunDir.at(tmp_path)
    run_dir.write(run_dir.preflight_json, REPORT)
    record = StageRecord(
        stage="preflight", inputs_hash="0" * 64, started=START, duration_s=1, status="failed",
        outcome=Outcome.CONFIGURATION, message="short",
    )  # fmt: skip
    run_dir.write(run_dir.stages / "preflight.json", record)
    generate_report(tmp_path)
    conclusion = json.loads((tmp_path / "report.json").read_text())["conclusion"]
    error = REPORT.error()
    assert isinstance(error, ConfigurationError)
    assert (conclusion["exit_code"], conclusion["fix"]) == (3, error.fix)
    assert conclusion["headline"] == f"wrong set-up: {error.message}"


def test_a_report_without_errors_has_no_error_to_raise():
    assert PreflightReport(results=[check("dtype", doubtful("dtype", "x", "y"))]).error() is None


@pytest.mark.parametrize(
    ("later", "standings"),
    [
        (check("dtype"), ["fine", "fine"]),
        (check("other", wrong("other", "x", "y")), ["doubtful", "fine", "wrong"]),
    ],
)
def test_a_later_part_adds_to_the_first(later, standings):
    first = PreflightReport(results=[check("dtype", doubtful("dtype", "x", "y")), check("rope")])
    both = first.followed_by(PreflightReport(results=[later]))
    assert sorted(item.standing for item in both.results) == sorted(standings)
