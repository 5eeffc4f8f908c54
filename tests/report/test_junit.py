"""`junit.xml`: one case per check, every kind of ending its own element, valid whatever a model printed."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from accuracy_core.errors import ConfigurationError, EngineDiedError, NotMeasuredError
from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.prompts.conclusion import Conclusion, conclude
from accuracy_core.report.document import PromptSummary, ReportDocument, StageSummary
from accuracy_core.report.junit import junit_text
from accuracy_core.schemas import PluginStatus, PromptAnalysisStatus, ScoreRow, TaskStatus, ThresholdResult

SCHEMA = etree.RelaxNG(etree.parse(str(Path(__file__).with_name("junit.rng"))))
HOSTILE = "a\x00b\x1b[31m \ud800 \ufffe ]]> </failure> <!-- & \" ' \U0001f600 &#0;"


def document(conclusion: Conclusion, **more: Any) -> ReportDocument:
    return ReportDocument(
        generated=datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC),
        model="tiny",
        outcome=conclusion.outcome,
        verdict=conclusion.verdict,
        banner=conclusion.banner,
        headline=conclusion.headline,
        exit_code=conclusion.exit_code,
        conclusion=conclusion,
        **more,
    )


def passed() -> Conclusion:
    return conclude(TaskStatus(passed=True), PromptAnalysisStatus(verdict=Verdict.PASS, n_prompts=1))


def parsed(text: str) -> Any:
    root = etree.fromstring(text.encode(), etree.XMLParser(resolve_entities=False))
    SCHEMA.assertValid(root)
    return root


def cases(text: str) -> dict[str, tuple[str, str]]:
    """`classname:name` -> (element, type); ("passed", "") without one."""
    return {
        f"{case.get('classname')}:{case.get('name')}": next(((r.tag, r.get("type")) for r in case), ("passed", ""))
        for case in parsed(text).iter("testcase")
    }


def score(metric: str) -> ScoreRow:
    return ScoreRow(key=f"t/{metric},none", task="t", metric=metric, filter="none", value=0.5)


def limit(metric: str, *, ok: bool, key: bool = True, **more: Any) -> ThresholdResult:
    name = f"t/{metric},none"
    return ThresholdResult(given_key=name, key=name if key else None, passed=ok, value=0.5, bound=0.6, **more)


def test_scores_pass_fail_or_are_not_judged() -> None:
    found = cases(
        junit_text(
            document(
                passed(),
                scores=[score("acc"), score("f1"), score("bleu")],
                thresholds=[limit("acc", ok=True), limit("f1", ok=False), limit("gone", ok=False, key=False)],
            )
        )
    )
    assert found == {
        "assay.run:conclusion": ("passed", ""),
        "assay.scores.t:acc,none": ("passed", ""),
        "assay.scores.t:f1,none": ("failure", "score"),
        "assay.scores.t:bleu,none": ("skipped", "not_judged"),
        "assay.scores:t/gone,none": ("failure", "score"),
    }


def test_two_thresholds_on_one_score_are_two_checks() -> None:
    limits = [limit("acc", ok=True), limit("acc", ok=False, rule="fraction_of_reference")]
    found = cases(junit_text(document(passed(), scores=[score("acc")], thresholds=limits)))
    assert found["assay.scores.t:acc,none [minimum]"] == ("passed", "")
    assert found["assay.scores.t:acc,none [fraction_of_reference]"] == ("failure", "score")


def test_each_prompt_and_plugin_is_a_check_of_its_own() -> None:
    verdicts = {"0": Verdict.PASS, "1": Verdict.SUSPECT, "2": Verdict.FAIL, "3": None}
    plugins = {
        "logit_validation": PluginStatus(plugin="logit_validation", verdict=Verdict.FAIL, per_prompt=verdicts),
        "kv_cache": PluginStatus(plugin="kv_cache", outcome=Outcome.NOT_MEASURED, errors={"plugin": "no KV cache"}),
        "broken": PluginStatus(plugin="broken", outcome=Outcome.INFRASTRUCTURE, errors={"0": "the engine died"}),
    }
    prompts = [
        PromptSummary(index=index, label="arith #7" if index == 0 else "", verdicts={"logit_validation": verdict})
        for index, verdict in enumerate(verdicts.values())
    ]
    prompts[0] = prompts[0].model_copy(update={"errors": {"broken": "the engine died"}})
    found = cases(junit_text(document(passed(), plugins=plugins, prompts=prompts)))
    assert found == {
        "assay.run:conclusion": ("passed", ""),
        "assay.prompts.logit_validation:prompt 0 (arith #7)": ("passed", ""),
        "assay.prompts.logit_validation:prompt 1": ("failure", "suspect"),
        "assay.prompts.logit_validation:prompt 2": ("failure", "numerics"),
        "assay.prompts.logit_validation:prompt 3": ("skipped", "not_measured"),
        "assay.prompts.kv_cache:all prompts": ("skipped", "not_measured"),
        "assay.prompts.broken:prompt 0 (arith #7)": ("error", "infrastructure"),
    }


@pytest.mark.parametrize(
    ("conclusion", "ending"),
    [
        (passed(), ("passed", "")),
        (conclude(TaskStatus(passed=True), PromptAnalysisStatus(verdict=Verdict.FAIL)), ("failure", "accuracy")),
        (conclude(TaskStatus(passed=True), PromptAnalysisStatus(verdict=Verdict.SUSPECT)), ("failure", "accuracy")),
        (conclude(None, None, error=ConfigurationError("no model")), ("error", "configuration")),
        (conclude(None, None, error=EngineDiedError("gone")), ("error", "infrastructure")),
        (conclude(None, None, error=NotMeasuredError("no server")), ("error", "not_measured")),
        (
            conclude(None, PromptAnalysisStatus(verdict=Verdict.PASS), skipped=["evaluate"]),
            ("skipped", "not_measured"),
        ),
    ],
)
def test_no_run_looks_green_that_is_not(conclusion: Conclusion, ending: tuple[str, str]) -> None:
    assert cases(junit_text(document(conclusion)))["assay.run:conclusion"] == ending


def test_counts_and_times_are_those_of_the_run() -> None:
    stages = [
        StageSummary(stage="evaluate", status="done", duration_s=2.5),
        StageSummary(stage="prompt_analysis", status="done", duration_s=1.25),
    ]
    made = document(passed(), scores=[score("a"), score("b")], thresholds=[limit("a", ok=False)], stages=stages)
    suites = {suite.get("name"): suite for suite in parsed(junit_text(made)).iter("testsuite")}
    scores = suites["assay.scores"]
    assert [scores.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["2", "1", "0", "1"]
    assert float(scores.get("time")) == 2.5
    assert float(suites["assay.run"].get("time")) == 3.75
    assert scores.get("timestamp") == "2026-03-04T05:06:07"


def test_what_a_model_prints_cannot_break_the_file() -> None:
    conclusion = conclude(None, None, error=EngineDiedError(HOSTILE))
    row = score("acc").model_copy(update={"task": HOSTILE, "metric": HOSTILE})
    prompts = [PromptSummary(index=0, label=HOSTILE, errors={HOSTILE: HOSTILE})]
    plugins = {HOSTILE: PluginStatus(plugin="x", errors={"0": HOSTILE})}
    text = junit_text(document(conclusion, scores=[row], plugins=plugins, prompts=prompts, model_fingerprint=HOSTILE))
    message = next(case for case in parsed(text).iter("error")).get("message")
    assert "]]> </failure> <!-- & \" ' \U0001f600 &#0;" in message
    assert "\x00" not in text
    assert "\x1b" not in text
