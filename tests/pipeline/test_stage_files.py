"""Results of an earlier run are had again whole and unchanged, or not at all."""

from __future__ import annotations

import pytest

from accuracy_core.pipeline.stage_files import StageFile, StageFiles, bring_back, describe, keep_only, stage_paths
from accuracy_core.schemas import RunDir


def written(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return RunDir.at(root)


ANALYSIS = {
    "prompt_analysis/analysis.json": "{}",
    "prompt_analysis/prompt_0/prompt_result.json": "rows",
    "tensor_compare/comparison_summary.json": "modules",
}
OTHERS = {
    "prompt_analysis/engine.log": "a log",
    "eval_results/m/results_2026.json": "{}",
    "task_analysis/task_status.json": "{}",
    "stages/prompt_analysis.json": "{}",
    "run_config.json": "{}",
    "combined_report.html": "page",
    "notes/mine.txt": "a file of the user's",
    "handover/x.json": "{}",
    "modules/module_validation.json": "{}",
    "modules/engine.log": "a log",
    "preflight/preflight.json": "{}",
    "preflight/preflight_requests.json": "{}",
}


@pytest.fixture
def first(tmp_path):
    return written(tmp_path / "first", {**ANALYSIS, **OTHERS})


@pytest.fixture
def reference(first):
    return describe(first, "prompt_analysis", "key", root=str(first.root), complete=True, outputs=["prompt_analysis"])


def names(run_dir, stage="prompt_analysis"):
    return [path.relative_to(run_dir.root).as_posix() for path in stage_paths(run_dir.root, stage)]


def test_a_stage_owns_its_files_and_no_others(first, reference):
    assert names(first) == sorted(ANALYSIS)
    assert names(first, "evaluate") == ["eval_results/m/results_2026.json"]
    assert names(first, "task_analysis") == ["task_analysis/task_status.json"]
    assert names(first, "module_validation") == ["modules/module_validation.json"]
    assert names(first, "preflight") == ["preflight/preflight.json"]
    assert names(first, "preflight_requests") == ["preflight/preflight_requests.json"]
    with pytest.raises(ValueError, match="report"):
        stage_paths(first.root, "report")
    assert [file.path for file in reference.files] == sorted(ANALYSIS)
    assert StageFiles.from_json(reference.to_json()) == reference


def test_another_directory_gets_the_same_bytes_and_loses_its_old_ones(tmp_path, reference):
    second = written(
        tmp_path / "second",
        {"prompt_analysis/prompt_7/prompt_result.json": "of another target", "task_analysis/task_status.json": "own"},
    )
    assert bring_back(reference, second)
    assert names(second) == sorted(ANALYSIS)
    assert {name: (second.root / name).read_text() for name in ANALYSIS} == ANALYSIS
    assert (second.root / "task_analysis/task_status.json").read_text() == "own"
    assert not list(second.root.glob(".bring-*"))


def test_the_same_directory_keeps_its_files_and_loses_later_ones(first, reference):
    written(first.root, {"prompt_analysis/prompt_1/prompt_result.json": "of a later run"})
    assert bring_back(reference, first)
    assert names(first) == sorted(ANALYSIS)
    assert (first.root / "notes/mine.txt").exists()


@pytest.mark.parametrize("damage", ["gone", "changed", "longer", "directory gone"])
def test_damaged_results_are_not_used_and_nothing_is_touched(tmp_path, first, reference, damage):
    path = first.root / "prompt_analysis/prompt_0/prompt_result.json"
    if damage == "gone":
        path.unlink()
    elif damage == "directory gone":
        first.root.rename(tmp_path / "elsewhere")
    else:
        path.write_text("rowz" if damage == "changed" else "rows and more")
    second = written(tmp_path / "second", {"prompt_analysis/analysis.json": "mine"})
    for run_dir in (second, first) if damage != "directory gone" else (second,):
        assert not bring_back(reference, run_dir)
    assert (second.root / "prompt_analysis/analysis.json").read_text() == "mine"
    assert [item.name for item in second.root.iterdir()] == ["prompt_analysis"]


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "a/../../b", ""])
def test_a_reference_that_leads_out_of_the_directory_is_refused(tmp_path, reference, path):
    run_dir = written(tmp_path / "second", {})
    run_dir.root.mkdir()
    bad = reference.model_copy(update={"files": [*reference.files, StageFile(path=path, size=0, sha256="0" * 64)]})
    assert not bring_back(bad, run_dir)
    assert not list(run_dir.root.iterdir())


def test_a_reference_without_files_is_not_a_result(first, reference):
    assert not bring_back(reference.model_copy(update={"files": []}), first)


def test_only_the_wanted_results_stay(first):
    older = first.root / "eval_results/m/results_2026.json"
    newer = first.root / "eval_results/m/results_2020.json"  # written by a host whose clock is six years behind
    newer.write_text("{}")
    keep_only(first, "evaluate", [newer])
    assert not older.exists()
    assert newer.exists()
