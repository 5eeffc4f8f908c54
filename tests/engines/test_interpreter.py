from __future__ import annotations

import sys
from pathlib import Path

import pytest

from accuracy_core.engines import interpreter
from accuracy_core.engines.interpreter import check_interpreter, find_interpreter, probe_interpreter
from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas import EngineSpec


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory in which, and in whose surroundings, there is no engine environment."""
    monkeypatch.delenv("ASSAY_ENGINE_PYTHON", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(interpreter, "_homes", lambda: [tmp_path])
    return tmp_path


def executable(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return path


def test_order(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = EngineSpec(model="m")
    with pytest.raises(ConfigurationError, match="ASSAY_ENGINE_PYTHON"):
        find_interpreter(spec)
    venv = executable(nowhere / ".venv-engine" / "bin" / "python")
    assert find_interpreter(spec) == venv
    from_variable = executable(nowhere / "other" / "python")
    monkeypatch.setenv("ASSAY_ENGINE_PYTHON", str(from_variable))
    assert find_interpreter(spec) == from_variable
    own = executable(nowhere / "own" / "python")
    assert find_interpreter(EngineSpec(model="m", python=str(own))) == own


def test_an_environment_stands_for_its_interpreter_and_links_are_kept(nowhere: Path) -> None:
    real = executable(nowhere / "real")
    (nowhere / "env" / "bin").mkdir(parents=True)
    link = nowhere / "env" / "bin" / "python"
    link.symlink_to(real)
    assert find_interpreter(EngineSpec(model="m", python=str(nowhere / "env"))) == link


def test_path_that_is_no_interpreter(nowhere: Path) -> None:
    (nowhere / "text").write_text("")
    for wrong in ("missing", "text"):
        with pytest.raises(ConfigurationError, match=r"EngineSpec\.python.*no executable file"):
            find_interpreter(EngineSpec(model="m", python=str(nowhere / wrong)))


def test_probe_of_this_interpreter() -> None:
    found = probe_interpreter(sys.executable)
    assert found["python"] == sys.version.split()[0]
    assert {"torch", "transformers", "safetensors"} <= set(found)


def test_interpreter_without_vllm_is_named(nowhere: Path) -> None:
    python = executable(nowhere / "p1", 'print(\'{"torch": "2"}\')')
    with pytest.raises(ConfigurationError, match=r"has no vllm, safetensors"):
        check_interpreter(python)


@pytest.mark.parametrize("text", ["raise SystemExit('broken environment')", "print('no json')", ""])
def test_interpreter_that_cannot_be_run(nowhere: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be run"):
        probe_interpreter(executable(nowhere / "p2", text))
