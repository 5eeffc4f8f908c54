from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from accuracy_core.engines.cores import acquire_cores
from accuracy_core.engines.environment import INSIDE, engine_environment
from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas import EngineSpec, FaultSpec, Platform


def environment(spec: EngineSpec, scratch: Path, model: str = "some/hub-id") -> dict[str, str]:
    return engine_environment(spec, None, python=Path(sys.executable), scratch=scratch, model=model)


def test_our_interpreters_settings_do_not_reach_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/ours")
    monkeypatch.setenv("VIRTUAL_ENV", "/ours")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "")
    monkeypatch.setenv("KEPT", "yes")
    found = environment(EngineSpec(model="m"), tmp_path)
    assert found["PYTHONPATH"] == str(INSIDE)
    assert "VIRTUAL_ENV" not in found
    assert "VLLM_CPU_KVCACHE_SPACE" not in found, "empty is not unset to vLLM: it would crash"
    assert found["KEPT"] == "yes"
    assert found["VLLM_NO_USAGE_STATS"] == found["DO_NOT_TRACK"] == "1"
    assert Path(found["TMPDIR"]).parent == tmp_path
    assert Path(found["TMPDIR"]).is_dir()


def test_offline_only_for_a_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert "HF_HUB_OFFLINE" not in environment(EngineSpec(model="m"), tmp_path)
    assert environment(EngineSpec(model="m"), tmp_path, str(tmp_path))["HF_HUB_OFFLINE"] == "1"


def test_threads_are_fixed_on_the_cpu_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found = environment(EngineSpec(model="m", num_threads=3), tmp_path)
    assert found["OMP_NUM_THREADS"] == "3"
    assert found["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert found["TORCHDYNAMO_DISABLE"] == "1"
    compiled = environment(EngineSpec(model="m", engine_args={"enforce_eager": False}), tmp_path)
    assert "TORCHDYNAMO_DISABLE" not in compiled
    assert "OMP_NUM_THREADS" not in environment(EngineSpec(model="m", platform=Platform.CUDA), tmp_path)


def test_the_users_environment_has_the_last_word(tmp_path: Path) -> None:
    spec = EngineSpec(model="m", env={"OMP_NUM_THREADS": "2", "VLLM_LOGGING_LEVEL": "DEBUG"})
    found = environment(spec, tmp_path)
    assert (found["OMP_NUM_THREADS"], found["VLLM_LOGGING_LEVEL"]) == ("2", "DEBUG")


def test_the_fault_crosses_with_its_defaults_filled_in(tmp_path: Path) -> None:
    found = environment(EngineSpec(model="m", fault=FaultSpec(name="mlp-scale", layer=2)), tmp_path)
    assert json.loads(found["ASSAY_FAULT"]) == {
        "name": "mlp-scale", "layer": 2, "strength": 1.05, "position": 0, "params": {},
    }  # fmt: skip
    assert "ASSAY_FAULT" not in environment(EngineSpec(model="m"), tmp_path)
    with pytest.raises(ConfigurationError, match="mlp-scale"):
        environment(EngineSpec(model="m", fault=FaultSpec(name="mlp-scal")), tmp_path)


def test_the_leased_cores_are_visible_and_marked(
    tmp_path: Path, own_locks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_CUDA_CORES", "0-3")
    spec = EngineSpec(model="m", platform=Platform.CUDA)
    with acquire_cores(Platform.CUDA, cores=[1, 2]) as lease:
        found = engine_environment(spec, lease, python=Path(sys.executable), scratch=tmp_path, model="m")
    assert found["CUDA_VISIBLE_DEVICES"] == "1,2"
    assert found["ASSAY_ENGINE_CORES"] == f"cuda:1,2@{own_locks}"
