"""Every shared case: scores, thresholds, deviated set, prompts, counts and warnings."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest

from accuracy_core.errors import ConfigurationError
from accuracy_core.evals.analysis import TaskAnalysis, run_task_analysis
from accuracy_core.evals.analyzer import LmEvalAnalyzer
from accuracy_core.evals.prompt_records import sample_metrics
from accuracy_core.evals.readers.read import read_results
from accuracy_core.evals.readers.requests_of import sent_request
from accuracy_core.schemas import DeviatedPrompts, ResultsSummary, TaskStatus
from tests.evals.cases import Expectation, cases, expectations

SOUND = [item for item in expectations() if not item.expected.get("error")]
ERRORS = [item for item in expectations() if item.expected.get("error")]


def analyse(item: Expectation, output: Path) -> TaskAnalysis:
    return run_task_analysis(LmEvalAnalyzer(), item.source, item.expected["thresholds"], output)


def test_all_cases_are_here() -> None:
    assert len(cases()) == 12
    assert len(ERRORS) == 4


@pytest.mark.parametrize("item", cases(), ids=str)
def test_scores(item: Expectation) -> None:
    scores = {row.key: row.value for row in read_results(item.source).sheet.rows}
    expected = {key: float(value) for key, value in item.expected["scores"].items()}
    assert scores.keys() == expected.keys()
    for key, value in expected.items():
        same = math.isnan(scores[key]) if math.isnan(value) else scores[key] == pytest.approx(value, abs=1e-9)
        assert same, (key, scores[key], value)


@pytest.mark.parametrize("item", cases(), ids=str)
def test_keys_that_are_no_metric(item: Expectation) -> None:
    keys = {f"{row.metric},{row.filter}" for row in read_results(item.source).sheet.rows}
    metrics = {key.split(",")[0] for key in keys}
    assert not keys & set(item.expected["not_metrics"])
    assert not metrics & set(item.expected["not_metrics"])


@pytest.mark.parametrize("item", cases(), ids=str)
def test_n_records(item: Expectation) -> None:
    counts = {task: table.n_records() for task, table in read_results(item.source).samples.items()}
    assert counts == item.expected["n_records"]


@pytest.mark.parametrize("item", SOUND, ids=str)
def test_thresholds(item: Expectation, tmp_path: Path) -> None:
    analysis = analyse(item, tmp_path)
    assert analysis.passed is item.expected["passed"]
    assert {failed.given_key for failed in analysis.failed} == set(item.expected["failed"])
    for name in item.expected.get("must_list", []):
        assert any(name in failed.reason for failed in analysis.failed)


@pytest.mark.parametrize("item", ERRORS, ids=str)
def test_ambiguous_thresholds(item: Expectation, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        analyse(item, tmp_path)
    for name in item.expected["must_list"]:
        assert name in str(caught.value)


def _number(value: Any) -> float:
    """Lists of booleans count as right only when all are; their mean is what the analysis keeps."""
    return sum(value) / len(value) if isinstance(value, list) else float(value)


@pytest.mark.parametrize("item", SOUND, ids=str)
def test_deviated(item: Expectation, tmp_path: Path) -> None:
    analysis = analyse(item, tmp_path)
    prompts = list(analysis.deviated_prompts)
    found = {(prompt.task, prompt.doc_id, name): prompt for prompt in prompts for name in prompt.deviated_filters}
    expected = {(entry["task"], entry["doc_id"], entry["filter"]): entry for entry in item.expected["deviated"]}
    assert found.keys() == expected.keys()
    assert len(prompts) == len({(prompt.task, prompt.doc_id) for prompt in prompts}), "a sample is listed once"
    for key, entry in expected.items():
        table = analysis.results.samples[key[0]]
        frame = table.frame
        rows = frame.index[(frame["doc_id"] == key[1]) & (frame["filter"] == key[2])]
        own = [sample_metrics(table.record(row)) for row in rows]
        for metric, value in entry["metrics"].items():
            assert any(metrics[metric] == pytest.approx(_number(value)) for metrics in own)
        assert found[key].verdicts[key[2]] is False
        if "response" in entry:
            wanted = entry["response"] if isinstance(entry["response"], list) else [entry["response"]]
            assert found[key].response == wanted
        assert found[key].truncated is entry.get("truncated", False)


@pytest.mark.parametrize("item", cases(), ids=str)
def test_prompts(item: Expectation) -> None:
    results = read_results(item.source)
    for name, wanted in item.expected["prompts"].items():
        task, _, doc = name.rpartition("#")
        table = results.samples[task]
        row = int(table.frame.index[table.frame["doc_id"] == int(doc)][0])
        request = sent_request(table.record(row)["arguments"])
        if wanted["kind"] == "chat":
            assert request.kind == "chat"
            assert request.messages == wanted["messages"]
            assert len(wanted["messages"]) == wanted["n_messages"]
            assert json.loads(request.prompt) == wanted["messages"]
        elif wanted["kind"] == "multiple_choice":
            assert (request.kind, request.prompt) == ("loglikelihood", wanted["context"])
            assert request.continuations == wanted["continuations"]
        elif wanted["kind"] == "loglikelihood":
            assert (request.kind, request.prompt) == ("loglikelihood", wanted["context"])
            assert request.continuations == [wanted["continuation"]]
        else:
            assert request.kind == "text"
            assert request.prompt == wanted.get("text", request.prompt)
            if "sha256" in wanted:
                assert hashlib.sha256(request.prompt.encode()).hexdigest() == wanted["sha256"]
                assert len(request.prompt) == wanted["chars"]


@pytest.mark.parametrize("item", SOUND, ids=str)
def test_warnings(item: Expectation, tmp_path: Path) -> None:
    warnings = analyse(item, tmp_path).warnings
    for tokens in item.expected.get("warning_tokens", []):
        assert any(all(token.lower() in text.lower() for token in tokens) for text in warnings), (tokens, warnings)
    if item.expected.get("warnings") == []:
        assert warnings == []


@pytest.mark.parametrize("item", SOUND, ids=str)
def test_files(item: Expectation, tmp_path: Path) -> None:
    """The four files, read back by their schemas; nothing non-finite is lost on the way."""
    analysis = analyse(item, tmp_path)
    folder = tmp_path / "task_analysis"
    status = TaskStatus.from_json((folder / "task_status.json").read_text())
    assert [row.key for row in status.scores] == list(analysis.scores)
    assert repr([row.value for row in status.scores]) == repr(list(analysis.scores.values()))
    written = DeviatedPrompts.from_json((folder / "deviated_prompts.json").read_text())
    assert written.prompts == list(analysis.deviated_prompts)
    summary = ResultsSummary.from_json((folder / "results_summary.json").read_text())
    assert summary.n_deviating == len(analysis.deviated_prompts) == status.n_deviated
    assert summary.n_deviating + summary.n_matching == status.n_samples
    report = (folder / "task_report.txt").read_text()
    assert ("PASSED" if analysis.passed else "FAILED") in report
    for text in analysis.warnings:
        assert text in report
