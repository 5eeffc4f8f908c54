from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accuracy_core.engines.devices import cores_needed, parse_cores, platform_cores, visible_cores
from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas import EngineSpec, Platform


@pytest.fixture(autouse=True)
def _no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ASSAY_CPU_CORES", "ASSAY_CUDA_CORES", "ASSAY_NEURON_CORES", "ASSAY_DEVICES_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("value", "cores"),
    [(3, (0, 1, 2)), ("3", (0, 1, 2)), ("0-3,6", (0, 1, 2, 3, 6)), ("6, 2", (2, 6)), ([4, 1, 4], (1, 4)), ("5,", (5,))],
)
def test_notations(value: Any, cores: tuple[int, ...]) -> None:
    assert parse_cores(value, source="x") == cores


@pytest.mark.parametrize("value", ["", "a", "0-", "-1", 0, "0", [], [1.5], True, [True], [-1], "3-1"])
def test_what_names_no_cores_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="names no device cores"):
        parse_cores(value, source="$ASSAY_CUDA_CORES")


def test_cpu_has_one_slot() -> None:
    assert platform_cores(Platform.CPU) == (0,)


def test_file_then_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "devices.toml"
    file.write_text('[neuron]\ncores = "0-31"\n[cuda]\ncores = [1, 3]\n')
    monkeypatch.setenv("ASSAY_DEVICES_FILE", str(file))
    assert platform_cores(Platform.NEURON) == tuple(range(32))
    assert platform_cores(Platform.CUDA) == (1, 3)
    assert platform_cores(Platform.CPU) == (0,)
    monkeypatch.setenv("ASSAY_NEURON_CORES", "2")
    assert platform_cores(Platform.NEURON) == (0, 1)


@pytest.mark.parametrize("text", ["[neuron", "[neuron]\ncore = 2\n", "neuron = 3\n", '[neuron]\ncores = "x"\n'])
def test_wrong_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    file = tmp_path / "devices.toml"
    file.write_text(text)
    monkeypatch.setenv("ASSAY_DEVICES_FILE", str(file))
    with pytest.raises(ConfigurationError, match=r"devices\.toml"):
        platform_cores(Platform.NEURON)


@pytest.mark.parametrize(("value", "cores"), [("2", (2,)), ("0,3", (0, 3))])
def test_an_inherited_restriction_is_respected(
    monkeypatch: pytest.MonkeyPatch, value: str, cores: tuple[int, ...]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert platform_cores(Platform.CUDA) == cores


def test_visible_cores() -> None:
    assert visible_cores(Platform.CPU, [0]) == {}
    assert visible_cores(Platform.CUDA, [1, 3])["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert visible_cores(Platform.NEURON, [0, 1, 2, 3]) == {"NEURON_RT_VISIBLE_CORES": "0-3"}
    assert visible_cores(Platform.NEURON, [4]) == {"NEURON_RT_VISIBLE_CORES": "4"}
    assert visible_cores(Platform.NEURON, [0, 2]) == {"NEURON_RT_VISIBLE_CORES": "0,2"}


def test_cores_needed() -> None:
    neuron = EngineSpec(model="m", platform=Platform.NEURON, tensor_parallel_size=4)
    assert cores_needed(neuron) == 4
    assert cores_needed(neuron.model_copy(update={"engine_args": {"pipeline_parallel_size": 2}})) == 8
    assert cores_needed(EngineSpec(model="m", tensor_parallel_size=2)) == 1, "the CPU's slot is the whole machine"
    assert cores_needed(EngineSpec(model="m", engine="transformers")) == 0
    assert cores_needed(EngineSpec(model="m", engine="transformers", platform=Platform.CUDA)) == 1
