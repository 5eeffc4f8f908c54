"""Looking after a cache: what is listed, found damaged, removed, exported."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path

import pytest
import torch

from accuracy_core.errors import ConfigurationError, InputMismatchError, ReferenceError_
from accuracy_core.goldens import get_or_compute_goldens
from accuracy_core.goldens.disk import DiskTier
from accuracy_core.goldens.manage import (
    collect_garbage,
    export_golden_pt,
    find_key,
    list_entries,
    read_golden_pt,
    verify_entries,
)
from accuracy_core.goldens.metadata import METADATA_NAME

from .helpers import CONFIG, DAMAGES, KEY, Compute, Malicious, entry_folder, equal

OTHER = {**CONFIG, "output_length": 9}


@pytest.fixture
def filled(cache: Path) -> Path:
    for config in (CONFIG, OTHER):
        get_or_compute_goldens(config, Compute(), cache_dir=cache, provenance={"model_id": "m"})
    os.utime(entry_folder(cache) / METADATA_NAME, (1e9, 1e9))
    return cache


def test_list(filled: Path) -> None:
    oldest, newest = list_entries(filled)
    assert oldest.key == KEY
    assert (oldest.model_id, oldest.problem, oldest.last_used.year) == ("m", "", 2001)
    assert oldest.tensors["fp32_logits"] == [[4, 1, 50]]
    assert oldest.bytes == sum(path.stat().st_size for path in entry_folder(filled).iterdir())
    assert newest.last_used > oldest.last_used
    DAMAGES["metadata truncated"](entry_folder(filled))
    assert {entry.key: bool(entry.problem) for entry in list_entries(filled)} == {KEY: True, newest.key: False}
    assert list_entries(filled.with_name("no-cache")) == []


@pytest.mark.parametrize("damage", DAMAGES)
def test_verify_finds_every_damage(damage: str, filled: Path) -> None:
    assert set(verify_entries(filled).values()) == {""}
    DAMAGES[damage](entry_folder(filled))
    report = verify_entries(filled, quarantine=False)
    assert [key for key, problem in report.items() if problem] == [KEY]
    assert entry_folder(filled).exists()
    assert verify_entries(filled)[KEY]
    assert not entry_folder(filled).exists()
    assert KEY not in verify_entries(filled)


def test_garbage(filled: Path) -> None:
    DAMAGES["data empty"](entry_folder(filled))
    verify_entries(filled)
    (filled / "tmp" / "dead").mkdir()
    report = collect_garbage(filled)
    assert (report.evicted, report.quarantined_removed) == ([], 0)
    assert not list((filled / "tmp").iterdir())
    time.sleep(0.01)
    report = collect_garbage(filled, max_bytes=0, quarantine_days=0)
    assert (len(report.evicted), report.quarantined_removed, report.bytes_left) == (1, 1, 0)
    assert list_entries(filled) == []


def test_find_key(filled: Path) -> None:
    assert find_key(KEY[:10], filled) == KEY
    for prefix in ("", KEY[:3], "zzzzzzz", "../../.."):
        with pytest.raises(ConfigurationError, match="no golden"):
            find_key(prefix, filled)


def test_export_and_import(filled: Path, tmp_path: Path) -> None:
    path = export_golden_pt(KEY[:12], tmp_path, filled)
    assert path == tmp_path / "golden.pt"
    assert equal(torch.load(path, weights_only=True), Compute().tensors())
    assert equal(read_golden_pt(path), Compute().tensors())
    assert export_golden_pt(KEY, tmp_path / "named.pt", filled).name == "named.pt"
    with pytest.raises(ConfigurationError, match="cannot be written"):
        export_golden_pt(KEY, tmp_path / "no" / "folder.pt", filled)
    DAMAGES["bit in the last tensor"](entry_folder(filled))
    with pytest.raises(ConfigurationError, match="cannot be exported"):
        export_golden_pt(KEY, tmp_path / "damaged.pt", filled)
    assert not (tmp_path / "damaged.pt").exists()


def test_malicious_golden_pt_is_not_run(tmp_path: Path) -> None:
    marker, path = tmp_path / "was-run", tmp_path / "golden.pt"
    torch.save({"fp32_logits": [Malicious(marker)]}, path)
    with pytest.raises(ConfigurationError, match="read safely"):
        read_golden_pt(path)
    path.write_bytes(pickle.dumps(Malicious(marker)))
    with pytest.raises(ConfigurationError, match="read safely"):
        read_golden_pt(path)
    assert not marker.exists()
    pickle.loads(pickle.dumps(Malicious(marker)))  # the trap works: it is the reader that does not fall into it
    assert marker.exists()


def test_what_is_no_golden_pt(tmp_path: Path) -> None:
    path = tmp_path / "golden.pt"
    for content in (b"", b"text", b"\x80"):
        path.write_bytes(content)
        with pytest.raises(ConfigurationError):
            read_golden_pt(path)
    with pytest.raises(ConfigurationError):
        read_golden_pt(tmp_path / "missing.pt")
    torch.save([torch.zeros(1)], path)
    with pytest.raises(ConfigurationError, match="holds a list"):
        read_golden_pt(path)
    torch.save({"a": 1.0}, path)
    with pytest.raises(InputMismatchError):
        read_golden_pt(path)
    torch.save({"a": torch.tensor([float("nan")])}, path)
    with pytest.raises(ReferenceError_):
        read_golden_pt(path)


def test_damaged_entry_beside_a_golden_pt_of_the_old_layout(filled: Path) -> None:
    """A pickle dropped into an entry's folder is never opened."""
    folder = entry_folder(filled)
    (folder / "golden.pt").write_bytes(pickle.dumps(Malicious(folder / "was-run")))
    assert get_or_compute_goldens(CONFIG, Compute(), cache_dir=filled).source == "disk"
    assert not (folder / "was-run").exists()
    assert DiskTier(filled).remove(KEY)
