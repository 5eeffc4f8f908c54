"""Push and pull, against a shared store that is a folder, and against a real server; the command line over both."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from accuracy_core.errors import ConfigurationError, InfrastructureError
from accuracy_core.goldens import get_or_compute_goldens, s3
from accuracy_core.goldens.disk import DiskTier
from accuracy_core.goldens.metadata import DATA_NAME, METADATA_NAME
from accuracy_core.goldens.sharing import pull_entries, push_entries
from flows.cli.goldens import goldens as app

from .helpers import CONFIG, DAMAGES, KEY, Compute, entry_folder, equal
from .s3_server import client, needs_server


class FolderTier:
    """A shared store in a folder. `closed` makes it refuse everything, as a dead server does."""

    def __init__(self, root: Path) -> None:
        self.root, self.closed = root, False

    def fetch(self, key: str, folder: Path) -> bool:
        if self.closed or not self.holds(key):
            return False
        for name in (DATA_NAME, METADATA_NAME):
            shutil.copy(self.root / key / name, folder / name)
        return True

    def publish(self, metadata: Any, folder: Path) -> Any:
        if self.closed:
            return None
        shutil.copytree(folder, self.root / metadata.key)
        return metadata

    def condemn(self, key: str) -> None:
        """Not needed here."""

    def holds(self, key: str) -> bool:
        return (self.root / key / METADATA_NAME).exists()

    def leases(self) -> None:
        """None."""

    def keys(self) -> list[str] | None:
        return None if self.closed else sorted(path.name for path in self.root.iterdir())


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderTier:
    (tmp_path / "store").mkdir()
    tier = FolderTier(tmp_path / "store")
    monkeypatch.setattr(s3, "s3_tier", lambda uri, warn: None if uri == "" else tier)
    return tier


@pytest.fixture
def filled(cache: Path) -> Path:
    for length in (4, 9):
        get_or_compute_goldens({**CONFIG, "output_length": length}, Compute(seed=length), cache_dir=cache, s3_uri="")
    return cache


def test_pushed_goldens_are_pulled_as_they_were(store: FolderTier, filled: Path, tmp_path: Path) -> None:
    first, again = push_entries(cache_dir=filled), push_entries(cache_dir=filled)
    assert (len(first.moved), len(again.moved), len(again.present)) == (2, 0, 2)
    pulled = pull_entries(cache_dir=tmp_path / "other")
    assert sorted(pulled.moved) == DiskTier(filled).keys()
    assert pull_entries(cache_dir=tmp_path / "other").present == sorted(pulled.moved)
    golden = get_or_compute_goldens(CONFIG, Compute(), cache_dir=tmp_path / "other", s3_uri="")
    assert golden.source == "disk"
    assert equal(golden, Compute(seed=4).tensors())


def test_damaged_goldens_are_neither_sent_nor_kept(store: FolderTier, filled: Path, tmp_path: Path) -> None:
    push_entries([KEY], filled)
    DAMAGES["bit in the last tensor"](store.root / KEY)
    report = pull_entries([KEY], tmp_path / "other")
    assert "digest" in report.failed[KEY]
    assert not DiskTier(tmp_path / "other").keys()
    DAMAGES["data empty"](entry_folder(filled))
    report = push_entries(cache_dir=filled)
    assert "not usable here" in report.failed[KEY]
    assert len(report.moved) == 1


def test_store_that_refuses(store: FolderTier, filled: Path, tmp_path: Path) -> None:
    store.closed = True
    assert set(push_entries(cache_dir=filled).failed) == set(DiskTier(filled).keys())
    with pytest.raises(InfrastructureError, match="cannot be listed"):
        pull_entries(cache_dir=tmp_path / "other")
    assert pull_entries([KEY], tmp_path / "other").failed


def test_without_a_store(filled: Path) -> None:
    for transfer in (push_entries, pull_entries):
        with pytest.raises(ConfigurationError, match="no shared store"):
            transfer(cache_dir=filled)


def call(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(item) for item in arguments], env={"COLUMNS": "200"})
    return result.exit_code, result.output


def test_command_line(store: FolderTier, filled: Path, tmp_path: Path) -> None:
    where = ("--cache-dir", filled)
    code, text = call("ls", *where)
    assert code == 0
    assert KEY[:12] in text
    assert "2 goldens" in text
    assert call("verify", *where)[1].strip() == "2 good, 0 damaged"
    assert "2 pushed" in call("push", *where)[1]
    assert "2 pulled" in call("pull", "--cache-dir", tmp_path / "other")[1]
    assert "0 pushed, 1 there before" in call("push", KEY[:8], *where)[1]
    assert call("export", KEY[:8], tmp_path, *where)[0] == 0
    assert (tmp_path / "golden.pt").exists()
    DAMAGES["data empty"](entry_folder(filled))
    assert call("verify", "--keep", *where)[0] == 1
    assert call("push", *where)[0] == 1
    assert "1 good, 1 damaged" in call("verify", *where)[1]
    code, text = call("gc", "--max-bytes", 0, "--quarantine-days", 0, *where)
    assert (code, text.strip()) == (0, "1 evicted, 1 removed from quarantine, 0.0 MB left")
    code, text = call("export", "abcdef01", tmp_path, *where)
    assert code == 3
    assert "what to do" in text


@needs_server
@pytest.mark.parametrize("prefix", ["", "/team/goldens"])
@pytest.mark.usefixtures("uri")
def test_real_server(prefix: str, server: int, filled: Path, tmp_path: Path) -> None:
    bucket = f"sharing{prefix.count('/')}"  # of its own: one of the prefixes is the whole bucket
    client(server).create_bucket(Bucket=bucket)
    uri = f"s3://{bucket}{prefix}"
    client(server).put_object(Bucket=bucket, Key=f"{prefix}/v1/junk".strip("/"), Body=b"x")
    assert len(push_entries(cache_dir=filled, s3_uri=uri).moved) == 2
    assert len(push_entries(cache_dir=filled, s3_uri=uri).present) == 2
    report = pull_entries(cache_dir=tmp_path / "other", s3_uri=uri)
    assert (sorted(report.moved), report.failed, report.warnings) == (DiskTier(filled).keys(), {}, [])
    golden = get_or_compute_goldens(CONFIG, Compute(), cache_dir=tmp_path / "other", s3_uri="")
    assert equal(golden, Compute(seed=4).tensors())
    unknown = pull_entries(["0" * 64], tmp_path / "other", uri)
    assert list(unknown.failed) == ["0" * 64]
