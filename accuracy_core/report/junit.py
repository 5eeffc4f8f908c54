"""`junit.xml` for CI systems: one test case per check; what failed, broke or was not measured stays apart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from accuracy_core.outcome import ExitCode, Outcome, Verdict
from accuracy_core.report.document import PromptSummary, ReportDocument
from accuracy_core.schemas import PluginStatus, RunDir, ScoreRow, ThresholdResult, write_text

if TYPE_CHECKING:
    from junitparser import TestCase, TestSuite

#: characters that XML 1.0 cannot hold, not even escaped: a model may print any of them
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LONGEST_NAME = 300
_PREFIX = "assay"


def write_junit(run_dir: RunDir, document: ReportDocument) -> None:
    """Write `junit.xml` beside the report."""
    write_text(run_dir.root / "junit.xml", junit_text(document))


def junit_text(document: ReportDocument) -> str:
    """The document as JUnit XML.

    Suites: `run` (what the run says as a whole), `preflight` (one case per check), `scores` (one case per score and
    threshold), `prompts` (one per prompt and plugin) and `modules` (one per module and phase). `failure` is a verdict
    (type numerics, suspect, score or accuracy), `error` is what broke (type infrastructure, configuration or
    not_measured), `skipped` is what was not judged.
    """
    from junitparser import JUnitXml, TestSuite

    root = JUnitXml(_PREFIX)
    seconds = {stage.stage: stage.duration_s for stage in document.stages}
    for name, cases, stages in (
        ("run", [_conclusion(document)], list(seconds)),
        ("preflight", list(_preflight(document)), ["preflight", "preflight_requests"]),
        ("scores", list(_scores(document)), ["evaluate", "task_analysis"]),
        ("prompts", list(_prompts(document)), ["goldens", "prompt_analysis"]),
        ("modules", list(_modules(document)), ["module_validation"]),
    ):
        if not cases:
            continue
        suite = TestSuite(f"{_PREFIX}.{name}")
        suite.timestamp = document.generated.strftime("%Y-%m-%dT%H:%M:%S")
        _describe(suite, document)
        for case in cases:
            suite.add_testcase(case)
        suite.time = round(sum(seconds.get(stage, 0.0) for stage in stages), 3)
        root.add_testsuite(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + root.tostring().decode("utf-8")


def _describe(suite: TestSuite, document: ReportDocument) -> None:
    for name, value in {
        "model": document.model,
        "model_fingerprint": document.model_fingerprint,
        "outcome": document.outcome.value,
        "verdict": document.verdict.value if document.verdict else "none",
        "banner": document.banner.value,
    }.items():
        suite.add_property(name, _clean(value))


def _conclusion(document: ReportDocument) -> TestCase:
    text = "\n".join([document.headline, *document.conclusion.notes, *filter(None, [document.conclusion.next_command])])
    if document.exit_code == ExitCode.PASSED:
        if document.outcome is Outcome.NUMERICS:
            return _case("run", "conclusion")
        return _case("run", "conclusion", "skipped", "not_measured", document.headline)
    if document.exit_code == ExitCode.ACCURACY:
        return _case("run", "conclusion", "failure", "accuracy", document.headline, text)
    return _case("run", "conclusion", "error", document.outcome.value, document.headline, text)


def _preflight(document: ReportDocument) -> Iterator[TestCase]:
    for result in document.preflight.results if document.preflight is not None else []:
        text = "\n".join(f"{finding.evidence}\n{finding.fix}" for finding in result.findings)
        if result.standing == "wrong":
            yield _case(
                "preflight", result.check, "error", Outcome.CONFIGURATION.value, result.errors[0].evidence, text
            )
        elif result.standing == "not measured":
            yield _case("preflight", result.check, "skipped", "not_measured", text)
        else:
            yield _case("preflight", result.check)


def _scores(document: ReportDocument) -> Iterator[TestCase]:
    for score in document.scores:
        judged = [result for result in document.thresholds if result.key == score.key]
        if not judged:
            text = f"{score.value:.6g}: no threshold was given"
            yield _case(f"scores.{score.task}", _score_name(score), "skipped", "not_judged", text)
        for result in judged:
            yield _threshold(f"scores.{score.task}", _score_name(score), result, several=len(judged) > 1)
    for result in document.thresholds:
        if result.key is None:
            yield _threshold("scores", result.given_key, result, several=False)


def _score_name(score: ScoreRow) -> str:
    return f"{score.metric},{score.filter}"


def _threshold(classname: str, name: str, result: ThresholdResult, *, several: bool) -> TestCase:
    full = f"{name} [{result.rule}]" if several else name
    if result.passed:
        return _case(classname, full)
    text = result.reason or f"{result.value:.6g} does not meet {result.bound:.6g} ({result.rule})"
    return _case(classname, full, "failure", "score", text)


def _prompts(document: ReportDocument) -> Iterator[TestCase]:
    for name, plugin in document.plugins.items():
        shown = [prompt for prompt in document.prompts if str(prompt.index) in {*plugin.per_prompt, *plugin.errors}]
        for prompt in shown:
            yield _prompt(name, plugin, prompt)
        failed_elsewhere = plugin.verdict is Verdict.FAIL and all(
            prompt.verdicts.get(name) is not Verdict.FAIL for prompt in shown
        )
        if not shown or failed_elsewhere:  # all prompts together, or one that was added for the check
            why = plugin.errors.get("plugin", "") or "; ".join(dict.fromkeys(plugin.not_measured.values()))
            detail = plugin.worst.detail if plugin.worst is not None else ""
            yield _judged(f"prompts.{name}", "all prompts", plugin.verdict, plugin, why, detail)


def _modules(document: ReportDocument) -> Iterator[TestCase]:
    for check in document.modules:
        if check.verdict is Verdict.PASS:
            yield _case("modules", check.name)
        elif check.verdict is None:
            yield _case("modules", check.name, "skipped", "not_measured", check.reason)
        else:
            yield _case("modules", check.name, "failure", "numerics", check.reason)


def _prompt(name: str, plugin: PluginStatus, prompt: PromptSummary) -> TestCase:
    label = f"prompt {prompt.index}{f' ({prompt.label})' if prompt.label else ''}"
    detail = f"guards: {', '.join(prompt.guards)}; phase {prompt.phase.value}" if prompt.guards else ""
    if prompt.first_bad_token is not None:
        detail += f"; first bad token {prompt.first_bad_token}"
    problem = prompt.errors.get(name, "")
    return _judged(f"prompts.{name}", label, prompt.verdicts.get(name), plugin, problem, detail)


def _judged(
    classname: str, name: str, verdict: Verdict | None, plugin: PluginStatus, problem: str, detail: str = ""
) -> TestCase:
    if verdict is Verdict.PASS:
        return _case(classname, name)
    if verdict is not None:
        kind = "suspect" if verdict is Verdict.SUSPECT else "numerics"
        return _case(classname, name, "failure", kind, f"verdict {verdict.value}", detail)
    if plugin.outcome in (Outcome.INFRASTRUCTURE, Outcome.CONFIGURATION):
        return _case(classname, name, "error", plugin.outcome.value, problem or "no result", problem)
    return _case(classname, name, "skipped", "not_measured", problem or "not measured")


def _case(classname: str, name: str, kind: str = "", type_: str = "", message: str = "", text: str = "") -> TestCase:
    import junitparser

    case = junitparser.TestCase(_clean(name)[:_LONGEST_NAME], _clean(f"{_PREFIX}.{classname}")[:_LONGEST_NAME], 0.0)
    if kind:
        make: Any = {"failure": junitparser.Failure, "error": junitparser.Error, "skipped": junitparser.Skipped}[kind]
        result = make(_clean(message), type_)
        if text:
            result.text = _clean(text)
        case.result = [result]
    return case


def _clean(text: str) -> str:
    """`text` without what XML cannot hold; the library escapes the rest."""
    return _NOT_XML.sub("\ufffd", text)
