"""Damaged, mixed and empty result directories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from accuracy_core.errors import ConfigurationError
from accuracy_core.evals.readers.locate import task_of
from accuracy_core.evals.readers.read import read_results
from tests.evals.results_maker import STAMP, sample, write_run

RECORDS = [sample(0, 1.0), sample(1, 0.0)]


@pytest.mark.parametrize("source", ["nothing-here", ""])
def test_nothing_there(tmp_path: Path, source: str) -> None:
    with pytest.raises(ConfigurationError, match=r"does not exist|no lm-eval results"):
        read_results(tmp_path / source)


def test_a_directory_of_other_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ConfigurationError, match="no lm-eval results"):
        read_results(tmp_path)


def test_a_whole_run_directory(tmp_path: Path) -> None:
    """Other stages' files beside the results are none."""
    write_run(tmp_path / "eval_results/m", {"sums": RECORDS})
    for name in ("task_analysis/results_summary.json", "report.json", "partial_results.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"deviating": []}')
    (tmp_path / "eval_results/m/requests_x.jsonl").write_text("{}")
    (tmp_path / "other.jsonl").write_text("{}")
    assert list(read_results(tmp_path).samples) == ["sums"]


@pytest.mark.parametrize("source", [{}, {"results": 3}, {"samples": {}}])
def test_a_dict_that_is_no_result(source: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="no mapping 'results'"):
        read_results(source)


def test_two_models(tmp_path: Path) -> None:
    write_run(tmp_path / "one", {"sums": RECORDS})
    write_run(tmp_path / "two", {"sums": RECORDS})
    with pytest.raises(ConfigurationError, match="2 models") as caught:
        read_results(tmp_path)
    assert str(tmp_path / "one") in str(caught.value)
    assert read_results(tmp_path / "two").samples["sums"].n_records() == {"none": 2}


def test_two_models_side_by_side(tmp_path: Path) -> None:
    write_run(tmp_path, {"sums": RECORDS}, model="a/one")
    write_run(tmp_path, {"sums": RECORDS}, model="a/two", stamp="2026-05-01T00-00-00.0")
    with pytest.raises(ConfigurationError, match="a/one, a/two"):
        read_results(tmp_path)


def test_several_unstamped_results(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"results": {"t": {"acc": 0.5}}}))
    with pytest.raises(ConfigurationError, match=r"a\.json, b\.json"):
        read_results(tmp_path)
    assert read_results(tmp_path / "a.json").sheet.rows[0].key == "t/acc,none"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "utf-32"])
def test_declared_encodings(tmp_path: Path, encoding: str) -> None:
    write_run(tmp_path, {"sums": RECORDS})
    path = tmp_path / f"results_{STAMP}.json"
    path.write_bytes(path.read_text().encode(encoding))
    assert {row.key: row.value for row in read_results(tmp_path).sheet.rows} == {"sums/exact_match,none": 0.5}


@pytest.mark.parametrize("damage", [b"\xff\xfe\xff broken", b"{cut", b"[1, 2]", b"", b"\x80\x81\x82"])
def test_unreadable_results_file(tmp_path: Path, damage: bytes) -> None:
    write_run(tmp_path, {"sums": RECORDS})
    (tmp_path / f"results_{STAMP}.json").write_bytes(damage)
    results = read_results(tmp_path)
    assert {row.key: row.value for row in results.sheet.rows} == {"sums/exact_match,none": 0.5}
    assert any("scores recomputed from the samples" in text for text in results.warnings)
    (tmp_path / f"samples_sums_{STAMP}.jsonl").unlink()
    with pytest.raises(ConfigurationError, match=f"results_{STAMP}"):
        read_results(tmp_path)


def test_broken_lines_are_named_and_the_others_kept(tmp_path: Path) -> None:
    write_run(tmp_path, {"sums": [sample(0, 1.0), "{cut", "[]", sample(1, 0.0)]})
    path = tmp_path / f"samples_sums_{STAMP}.jsonl"
    latin = json.dumps(sample(2, 1.0), ensure_ascii=False).replace("response", "r\u00e9ponse").encode("latin-1")
    path.write_bytes(path.read_bytes() + latin + b"\n" + b"[" * 100_000 + b"\n")
    results = read_results(tmp_path)
    assert results.samples["sums"].n_records() == {"none": 2}
    for number, what in ((2, "JSON"), (3, "JSON"), (5, "UTF-8"), (6, "JSON")):
        assert any(f"line {number} of samples_sums_{STAMP} is not {what}" in text for text in results.warnings)


def test_a_samples_file_in_another_encoding_loses_nothing_silently(tmp_path: Path) -> None:
    write_run(tmp_path, {"sums": RECORDS})
    path = tmp_path / f"samples_sums_{STAMP}.jsonl"
    path.write_bytes(path.read_text().encode("utf-16"))
    results = read_results(tmp_path)
    assert results.samples["sums"].n_records() == {"none": 2}
    assert results.samples["sums"].record(1)["doc_id"] == 1


def test_unknown_fields_are_named(tmp_path: Path) -> None:
    write_run(tmp_path, {"sums": [sample(0, 1.0, surprise=3, other=None)]})
    results = read_results(tmp_path)
    assert any("unknown fields" in text and "other, surprise" in text for text in results.warnings)
    assert results.samples["sums"].metrics == ["exact_match"]


def test_a_group_that_contains_itself(tmp_path: Path) -> None:
    write_run(tmp_path, {"sums": RECORDS}, extra={"group_subtasks": {"g": ["g", "sums"], "h": ["i"], "i": ["h"]}})
    sheet = read_results(tmp_path).sheet
    assert sheet.leaves("g") == ["sums"]
    assert sheet.leaves("h") == []


def test_a_threshold_on_a_group_without_aggregate(tmp_path: Path) -> None:
    from accuracy_core.evals.analysis import run_task_analysis
    from accuracy_core.evals.analyzer import LmEvalAnalyzer

    scores = {"all": {"alias": "all", " ": " "}, "sums": {"exact_match,none": 0.5}}
    write_run(tmp_path / "r", {"sums": RECORDS}, scores=scores, extra={"group_subtasks": {"all": ["sums"]}})
    analysis = run_task_analysis(LmEvalAnalyzer(), tmp_path / "r", {"all/exact_match,none": 0.1}, tmp_path / "o")
    assert analysis.passed is False
    assert "sums/exact_match,none" in analysis.failed[0].reason
    assert len(analysis.deviated_prompts) == 0


def test_which_task_a_file_belongs_to() -> None:
    tasks = ["sums", "hard_sums", "a_b"]
    assert task_of(Path("pretrained__x,dtype__auto_hard_sums.jsonl"), tasks) == "hard_sums"
    assert task_of(Path(f"samples_a_b_{STAMP}.jsonl"), tasks) == "a_b"
    assert task_of(Path(f"samples_new_task_{STAMP}.jsonl"), tasks) == "new_task"
