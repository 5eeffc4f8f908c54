"""A calibration serves the target that it was made for, and no other unless that is meant."""

from __future__ import annotations

import pytest
import torch

from accuracy_core.calibration import CalibrationTarget, load_limits
from accuracy_core.calibration.measurement import device_name
from accuracy_core.capture.kv.limits import KvLimits
from accuracy_core.capture.limits import TensorLimits
from accuracy_core.errors import ConfigurationError
from accuracy_core.modules import closeness_three_way
from accuracy_core.modules.limits import ModuleLimits
from accuracy_core.numerics import default_tolerances
from accuracy_core.pipeline.limits import limits_for, noise_of
from accuracy_core.schemas import EngineSpec, Platform, PromptParameters
from accuracy_core.schemas.finding import CALIBRATION

MODEL = "f" * 64
TARGET = CalibrationTarget(MODEL, "bfloat16", device_name())


@pytest.fixture
def file(tmp_path, measured):
    path = tmp_path / "calibration.json"
    path.write_text(measured[0].to_json())
    return path


def test_the_target_that_it_was_made_for(file, measured):
    found = load_limits(file, TARGET)
    assert found.tolerances == measured[0].tolerances
    assert found.findings == ()


OTHERS = {
    "model": CalibrationTarget("0" * 64, "bfloat16", device_name()),
    "dtype": CalibrationTarget(MODEL, "float16", device_name()),
    "device": CalibrationTarget(MODEL, "bfloat16", "neuron"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_target_is_refused_unless_forced_and_then_said(file, measured, what):
    with pytest.raises(ConfigurationError, match=rf"another target: {what} [\s\S]*--force-calibration"):
        load_limits(file, OTHERS[what])
    found = load_limits(file, OTHERS[what], force=True)
    assert found.tolerances == measured[0].tolerances
    (finding,) = found.findings
    assert finding.check == CALIBRATION
    assert what in finding.evidence


def test_a_host_without_the_device_leaves_it_to_the_one_that_has_it(file):
    assert load_limits(file, CalibrationTarget(MODEL, "bfloat16")).findings == ()


def test_tolerances_without_a_target_serve_every_one(tmp_path):
    path = tmp_path / "tolerances.json"
    path.write_text(default_tolerances().to_json())
    assert load_limits(path, OTHERS["model"]).tolerances == default_tolerances()


@pytest.mark.parametrize(
    ("content", "message"), [("{", "not a valid"), ('{"model_fingerprint": "f"}', "not a valid Calibration")]
)
def test_files_that_are_neither(tmp_path, content, message):
    path = tmp_path / "calibration.json"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=message):
        load_limits(path, TARGET)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_limits(tmp_path / "none.json", TARGET)


def test_what_adds_noise_to_a_dtype_makes_another_target():
    plain = EngineSpec(model="m")
    assert noise_of(plain) == "bfloat16"
    quantised = plain.model_copy(update={"quantization": "fp8", "kv_cache_dtype": "fp8_e4m3"})
    assert noise_of(quantised) == "bfloat16 with fp8 weights and fp8_e4m3 KV cache"


def test_a_run_gets_the_limits_that_it_names(file, measured):
    parameters = PromptParameters(tolerances=str(file))
    assert limits_for(PromptParameters(), EngineSpec(model="m"), MODEL) is None
    found = limits_for(parameters, EngineSpec(model="m"), MODEL)
    assert found is not None
    assert found.tolerances == measured[0].tolerances
    elsewhere = EngineSpec(model="m", platform=Platform.NEURON)
    with pytest.raises(ConfigurationError, match="instead of neuron"):
        limits_for(parameters, elsewhere, MODEL)
    assert limits_for(parameters, elsewhere, MODEL, engine_here=False) is not None
    forced = parameters.model_copy(update={"force_calibration": True})
    assert limits_for(forced, elsewhere, MODEL).findings


def own(**extra):
    return default_tolerances().model_copy(update={"extra": extra})


def test_module_checks_read_their_bounds_from_a_calibration():
    draw = torch.Generator().manual_seed(0)
    fp32 = torch.randn(64, 64, generator=draw)
    expected, target = fp32.bfloat16(), (fp32 + 1e-9 * torch.randn(64, 64, generator=draw)).bfloat16()
    broken = (fp32 * 1.05).bfloat16()
    tight = ModuleLimits.of(own(modules={"l2_ratio": 0.5}))
    loose = ModuleLimits.of(own(modules={"l2_ratio": 1e6, "linf_ratio": 1e6, "sigma_ratio": 1e6}))
    assert closeness_three_way(fp32, expected, target).passed
    assert not closeness_three_way(fp32, expected, target, bounds=tight).passed
    assert not closeness_three_way(fp32, expected, broken).passed
    assert closeness_three_way(fp32, expected, broken, bounds=loose).passed


@pytest.mark.parametrize(("part", "limits"), [("kv", KvLimits), ("tensors", TensorLimits), ("modules", ModuleLimits)])
def test_a_limit_that_does_not_exist_is_refused(part, limits):
    with pytest.raises(ConfigurationError, match=f"extra.{part}"):
        limits.of(own(**{part: {"l2_ration": 3.0}}))
