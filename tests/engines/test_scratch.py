from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from accuracy_core.engines import scratch
from accuracy_core.engines.offline import OfflineVllmEngine
from accuracy_core.engines.scratch import Scratch, tensor_bytes
from accuracy_core.schemas import EngineSpec, ReplayRequest

from .conftest import Creator, wait_until


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of /dev/shm."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(scratch, "_MEMORY", folder)
    return folder


def test_in_memory_where_there_is_room(memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch.tempfile, "tempdir", str(tmp_path))  # type: ignore[attr-defined]
    small = Scratch(1)
    large = Scratch(1 << 60)
    assert small.path.parent == memory
    assert large.path.parent == tmp_path
    for folder in (small, large):
        (folder.path / "file").write_text("x")
        folder.remove()
        folder.remove()
        assert not folder.path.exists()


def test_a_folder_whose_owner_died_is_removed_by_the_next(memory: Path) -> None:
    code = f"""
from pathlib import Path
from accuracy_core.engines import scratch
scratch._MEMORY = Path({str(memory)!r})
print(scratch.Scratch(1).path, flush=True)
import time; time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        abandoned = Path(owner.stdout.readline().strip())
        Scratch(1).remove()
        assert abandoned.is_dir(), "its owner lives"
        owner.kill()
        owner.wait()
    kept = Scratch(1)
    assert not abandoned.exists()
    Scratch(1).remove()
    assert kept.path.is_dir()
    kept.remove()


def test_the_supervisor_removes_it_when_the_creator_is_killed(
    creator: Callable[..., Creator], fake_spec: Callable[..., EngineSpec], own_locks: Path
) -> None:
    running = creator("offline", fake_spec(), 1.0)
    folder = Path(running.said["scratch"])
    assert folder.is_dir()
    running.kill()
    assert wait_until(lambda: not running.tree() and not folder.exists(), 10)


def test_a_killed_engine_leaves_the_log_readable(fake_spec: Callable[..., EngineSpec], own_locks: Path) -> None:
    with OfflineVllmEngine(fake_spec()) as engine:
        assert engine._process is not None
        engine._process.supervisor.kill()
        engine._process.wait(10)
        assert "loading the model" in engine.log_tail()


def test_bytes_by_hand() -> None:
    requests = [
        ReplayRequest(request_id="a", prompt_token_ids=[1], forced_token_ids=[1, 2, 3]),
        ReplayRequest(request_id="b", prompt_token_ids=[1], max_new_tokens=5),
        ReplayRequest(request_id="c", prompt_token_ids=[1]),
    ]
    assert tensor_bytes(requests, 100) == (3 + 5 + 1) * 100 * 4
