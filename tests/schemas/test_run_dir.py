"""The run directory: documents appear complete or not at all, and bad places are typed errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas import Culprit, Phase, RunDir, TaskStatus, write_text


def test_write_and_read(tmp_path: Path) -> None:
    run_dir = RunDir.at(tmp_path / "run").create()
    culprit = Culprit(phase=Phase.PREFILL, layer=2)
    path = run_dir.root / "deep" / "culprit.json"
    run_dir.write(path, culprit)
    assert run_dir.read(path, Culprit) == culprit
    assert [item.name for item in path.parent.iterdir()] == ["culprit.json"]  # no temporary file is left
    with pytest.raises(ConfigurationError, match=r"not a valid TaskStatus in .*culprit\.json"):
        run_dir.read(path, TaskStatus)
    with pytest.raises(ConfigurationError, match="does not exist"):
        run_dir.read(run_dir.root / "other.json", Culprit)


def test_failed_write_leaves_the_old_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    write_text(path, "old")

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["a.json"]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="not writable"):
        RunDir.at(tmp_path / "file").create()
    with pytest.raises(ConfigurationError, match="not writable"):
        RunDir.at(tmp_path / "file" / "below").create()
    with pytest.raises(ConfigurationError, match="s3://"):
        RunDir.at("gs://bucket/run")


def test_at_accepts_a_run_dir_and_makes_paths_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_dir = RunDir.at("x")
    assert run_dir.root == tmp_path / "x"
    assert RunDir.at(run_dir) is run_dir
    assert run_dir.is_local
    assert run_dir.prompt_result(3, "logit_validation").name == "prompt_result.json"
    assert run_dir.prompt_result(3, "kv_cache").name == "kv_cache_result.json"


@pytest.mark.parametrize("uri", ["s3://", "s3:///x", "s3://B_ad/x", "s3://ab", "s3://bucket/a//b", "s3://bucket/../b"])
def test_an_s3_uri_that_names_nothing(uri: str) -> None:
    with pytest.raises(ConfigurationError, match="s3"):
        RunDir.at(uri)
