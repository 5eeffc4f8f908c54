"""Target and reference document by document: worse, better, wrong in both."""

from __future__ import annotations

from pathlib import Path

import pytest

from accuracy_core.evals.analysis import TaskAnalysis, run_task_analysis
from accuracy_core.evals.analyzer import LmEvalAnalyzer
from accuracy_core.evals.selection import select_prompts
from tests.evals.results_maker import sample, write_run


def compare(tmp_path: Path, target: list[float], reference: list[float], **settings: object) -> TaskAnalysis:
    write_run(tmp_path / "t", {"sums": [sample(doc, value) for doc, value in enumerate(target)]})
    write_run(
        tmp_path / "r",
        {"sums": [sample(doc, value, resps=[[f" trusted {doc}"]]) for doc, value in enumerate(reference)]},
    )
    return run_task_analysis(
        LmEvalAnalyzer(), tmp_path / "t", {"exact_match,none": 0.0}, tmp_path / "out", tmp_path / "r", **settings
    )


def test_flips_and_model_errors(tmp_path: Path) -> None:
    #                               worse  both wrong  better  equal
    analysis = compare(tmp_path, [0, 0, 0, 1, 1], [1, 1, 0, 0, 1], margin=0.3)
    assert sorted(item.doc_id for item in analysis.deviated_prompts) == [0, 1]
    assert [item.doc_id for item in analysis.model_errors] == [2]
    [test] = analysis.status.paired
    assert (test.key, test.n, test.n_worse, test.n_better) == ("sums/exact_match,none", 5, 2, 1)
    assert test.difference == pytest.approx(-0.2)
    assert test.mcnemar_p == pytest.approx(1.0)
    assert test.ci_low < -0.2 < test.ci_high
    assert test.non_inferior is False
    worse = next(iter(analysis.deviated_prompts))
    assert worse.reference_metrics == {"exact_match": 1.0}
    assert worse.reference_response == [f" trusted {worse.doc_id}"]
    assert [item.doc_id for item in select_prompts(analysis.deviated_prompts, 9, model_errors=analysis.model_errors)][
        -1
    ] == 2
    assert "McNemar" in (tmp_path / "out/task_analysis/task_report.txt").read_text()


def test_the_same_run_is_non_inferior_to_itself(tmp_path: Path) -> None:
    values = [1.0, 0.0] * 200
    analysis = compare(tmp_path, values, values, margin=0.02)
    [test] = analysis.status.paired
    assert (test.n_worse, test.n_better, test.mcnemar_p, test.non_inferior) == (0, 0, 1.0, True)
    assert len(analysis.deviated_prompts) == 0
    assert len(analysis.model_errors) == 200


def test_fractions_and_not_numbers(tmp_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    analysis = compare(tmp_path, [0.5, 0.5, nan, nan, inf, 0.9], [0.5, 0.75, 0.0, nan, 0.5, 0.2])
    found = [item.doc_id for item in analysis.deviated_prompts]
    assert (set(found[:2]), found[2:]) == ({2, 4}, [1]), "worst first"
    assert sorted(item.doc_id for item in analysis.model_errors) == [0, 3, 5]
    [test] = analysis.status.paired
    assert (test.n, test.n_worse, test.n_better) == (6, 3, 1)
    assert test.difference == pytest.approx((0 - 0.25 + 0.7) / 3)


def test_lower_is_better(tmp_path: Path) -> None:
    for name, values in (("t", [0.0, 3.0, 1.0]), ("r", [0.0, 1.0, 2.0])):
        records = [sample(doc, value, metric="mae") for doc, value in enumerate(values)]
        scores = {"heights": {"mae,none": sum(values) / 3}}
        write_run(
            tmp_path / name,
            {"heights": records},
            scores=scores,
            extra={"higher_is_better": {"heights": {"mae": False}}},
        )
    analysis = run_task_analysis(LmEvalAnalyzer(), tmp_path / "t", {"mae,none": 5}, tmp_path / "o", tmp_path / "r")
    assert [item.doc_id for item in analysis.deviated_prompts] == [1]
    assert [item.doc_id for item in analysis.model_errors] == [2]
    [test] = analysis.status.paired
    assert (test.n_worse, test.n_better) == (1, 1)
    assert test.difference == pytest.approx(-1 / 3)


def test_other_documents_are_left_out(tmp_path: Path) -> None:
    write_run(tmp_path / "t", {"sums": [sample(doc, 0.0) for doc in range(4)]})
    other = [sample(0, 1.0), sample(1, 1.0, doc_hash="f" * 64), sample(2, 0.0)]
    write_run(tmp_path / "r", {"sums": other})
    analysis = run_task_analysis(
        LmEvalAnalyzer(), tmp_path / "t", {"exact_match,none": 0}, tmp_path / "o", tmp_path / "r"
    )
    assert sorted(item.doc_id for item in analysis.deviated_prompts) == [0, 1, 3], (
        "1 and 3 are judged without a reference"
    )
    assert [item.doc_id for item in analysis.model_errors] == [2]
    assert analysis.status.paired[0].n == 2
    assert any("1 documents of sums are not the same" in text for text in analysis.warnings)
    assert any("1 of 4 samples of sums have no counterpart" in text for text in analysis.warnings)


def test_another_task_in_the_reference(tmp_path: Path) -> None:
    write_run(tmp_path / "t", {"sums": [sample(0, 0.0)]})
    write_run(tmp_path / "r", {"words": [sample(0, 1.0)]})
    analysis = run_task_analysis(
        LmEvalAnalyzer(), tmp_path / "t", {"exact_match,none": 0}, tmp_path / "o", tmp_path / "r"
    )
    assert analysis.status.paired == []
    assert [item.doc_id for item in analysis.deviated_prompts] == [0]
    assert any("no samples of sums" in text for text in analysis.warnings)


def test_repeated_documents_are_clusters(tmp_path: Path) -> None:
    def records(value: float) -> list[dict[str, object]]:
        return [sample(doc, value if doc < 5 else 1.0) for doc in range(30) for _ in range(4)]

    write_run(tmp_path / "t", {"sums": records(0.0)})
    write_run(tmp_path / "r", {"sums": records(1.0)})
    analysis = run_task_analysis(
        LmEvalAnalyzer(), tmp_path / "t", {"exact_match,none": 0}, tmp_path / "o", tmp_path / "r"
    )
    [test] = analysis.status.paired
    assert "cluster-robust" in test.detail
    assert test.n == 120
