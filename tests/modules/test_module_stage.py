"""Level 3 as a run: state, files, cache, report, and outcomes that are no verdict."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from accuracy_core.models.architectures import architecture_checkpoint
from accuracy_core.schemas import EngineSpec, FaultSpec, ModuleParameters, ModuleValidationResult, RunDir, RunParameters

pytestmark = pytest.mark.slow
HF = EngineSpec(model="embedded", engine="transformers")


@pytest.fixture(scope="module", autouse=True)
def api():
    from flows.local_api import local_api

    with local_api():
        yield


def validate(output: Path, engine: EngineSpec = HF, **settings):
    from flows.levels import modules_alone
    from flows.module_validation import module_validation

    asked = ModuleParameters(**{"n_inputs": 2, **settings})
    parameters = RunParameters(engine=engine, output_dir=str(output), module_validation=asked)
    state = module_validation(modules_alone(parameters), return_state=True)
    path = RunDir.at(output).module_validation_json
    return state, RunDir.at(output).read(path, ModuleValidationResult) if path.exists() else None


def stage(output: Path) -> str:
    return json.loads((output / "stages" / "module_validation.json").read_text())["status"]


def test_clean_passes_and_a_second_run_repeats_nothing(tmp_path):
    state, result = validate(tmp_path / "one")
    assert state.is_completed(), state.message
    assert {"embedding", "rms_norm", "rope", "attention", "mlp", "decoder_layer"} == {c.kind for c in result.checks}
    assert not result.found
    page = (tmp_path / "one" / "combined_report.html").read_text()
    assert "Module validation" in page
    state, again = validate(tmp_path / "two")
    assert state.is_completed()
    assert (stage(tmp_path / "one"), stage(tmp_path / "two")) == ("done", "cached")
    assert again == result


def test_a_fault_fails_the_run_and_is_named_with_figures(tmp_path):
    faulty = HF.model_copy(update={"fault": FaultSpec(name="mlp-scale")})
    state, result = validate(tmp_path, faulty, layers=[1], kinds=["mlp", "attention"])
    assert (state.name, {check.kind for check in result.failed}) == ("AccuracyFailed", {"mlp"})
    assert "mlp, layer 1" in state.message
    page = (tmp_path / "combined_report.html").read_text()
    for check in result.failed:
        assert (tmp_path / "modules" / check.figure).stat().st_size > 1_000_000
        assert f'href="modules/{check.figure}"' in page
    report = json.loads((tmp_path / "report.json").read_text())
    assert [check["kind"] for check in report["modules"] if check["verdict"] == "fail"] == ["mlp", "mlp"]
    assert 'name="mlp, layer 1, prefill"' in (tmp_path / "junit.xml").read_text()


def test_one_layer_at_a_time_and_seeded_weights_pass(tmp_path):
    state, result = validate(tmp_path, executor="one_layer", weights="seeded", seed=7, layers=[3])
    assert state.is_completed(), state.message
    assert {check.layer for check in result.checks if check.kind != "embedding"} == {3}


def test_nan_weights_are_not_measured(tmp_path):
    from safetensors.torch import load_file, save_file

    model = tmp_path / "model"
    shutil.copytree(architecture_checkpoint("llama"), model)
    (weights,) = model.glob("*.safetensors")
    tensors = load_file(weights)
    tensors["model.layers.0.mlp.down_proj.weight"][3, 3] = float("nan")
    save_file(tensors, weights, metadata={"format": "pt"})
    engine = HF.model_copy(update={"model": str(model)})
    state, result = validate(tmp_path / "run", engine, kinds=["mlp", "rms_norm"])
    assert state.name == "NotMeasured", state.message
    assert {check.kind for check in result.unmeasured} == {"mlp"}
    assert not result.failed


def test_an_unknown_module_is_wrong_setup(tmp_path):
    state, result = validate(tmp_path, kinds=["router"])
    assert (state.name, result) == ("ConfigurationFailed", None)
    assert "no router logits" in state.message


@pytest.mark.parametrize("name", ["embedded", "gemma3"])
def test_clean_vllm_passes_and_its_cut_digits_have_a_name(tmp_path, name):
    model = name if name == "embedded" else str(architecture_checkpoint(name))
    state, result = validate(tmp_path, EngineSpec(model=model), n_inputs=6, layers=[1])
    assert state.is_completed(), state.message
    assert not result.unmeasured
    assert "attention" in {check.kind for check in result.found}
    assert {check.kind for check in result.found} <= {"rope", "attention"}
    assert all(check.rule is False and "cut off" in check.finding for check in result.found)


def test_a_fault_in_vllm_is_not_excused(tmp_path):
    engine = EngineSpec(model="embedded", fault=FaultSpec(name="attention-scale"))
    state, result = validate(tmp_path, engine, layers=[1], kinds=["attention", "mlp"])
    assert (state.name, {check.kind for check in result.failed}) == ("AccuracyFailed", {"attention"})
