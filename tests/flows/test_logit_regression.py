"""The standing logit regression: which prompts, which state, what is cached, and that a fault fails it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from accuracy_core.outcome import Verdict
from accuracy_core.prompts.curated import curated_entries
from accuracy_core.prompts.plugins.logit_val import FP32_TWO_WAY
from accuracy_core.schemas import (
    ConsistencyResult,
    EngineSpec,
    FaultSpec,
    PromptAnalysisStatus,
    PromptParameters,
    RunDir,
    RunParameters,
)

pytestmark = pytest.mark.slow
HF = EngineSpec(model="embedded", engine="transformers")


@pytest.fixture(scope="module", autouse=True)
def api():
    from flows.local_api import local_api

    with local_api():
        yield


def regress(output: Path, engine: EngineSpec = HF, **prompts):
    from flows.logit_regression import logit_regression

    parameters = RunParameters(
        engine=engine, output_dir=str(output), prompt_analysis=PromptParameters(**{"output_length": 8, **prompts})
    )
    state = logit_regression(parameters, return_state=True)
    path = RunDir.at(output).prompt_analysis_json
    return state, RunDir.at(output).read(path, PromptAnalysisStatus) if path.exists() else None


def stage(output: Path, name: str) -> str:
    return str(json.loads((output / "stages" / f"{name}.json").read_text())["status"])


def test_clean_passes_on_the_curated_prompts_and_a_second_run_repeats_nothing(tmp_path):
    state, status = regress(tmp_path / "one")
    assert state.is_completed(), state.message
    assert (status.curated, status.n_prompts) == (True, len(curated_entries()))
    routes = {route.route: route for route in status.plugins["logit_validation"].routes}
    assert {"two_way", "sigma_ratio", "agg_bc", FP32_TWO_WAY} <= set(routes)
    assert [name for name, route in routes.items() if route.informative] == [FP32_TWO_WAY]
    assert not (tmp_path / "one" / "eval_results").exists()
    assert "static limits of FP32" in (tmp_path / "one" / "combined_report.html").read_text()
    state, again = regress(tmp_path / "two")
    assert state.is_completed()
    assert (stage(tmp_path / "one", "prompt_analysis"), stage(tmp_path / "two", "prompt_analysis")) == (
        "done", "cached",
    )  # fmt: skip
    assert again.model_dump_json() == status.model_dump_json()


def test_a_fault_fails_the_run(tmp_path):
    state, status = regress(tmp_path, HF.model_copy(update={"fault": FaultSpec(name="mlp-scale")}), triage=False)
    assert (state.name, status.verdict) == ("AccuracyFailed", Verdict.FAIL)


def test_prompts_of_the_callers_own(tmp_path):
    state, status = regress(tmp_path, prompts=["2+3=", "abc"])
    assert state.is_completed(), state.message
    assert (status.curated, status.n_prompts) == (False, 2)


def test_wrong_setup_ends_it_before_a_golden(tmp_path):
    state, status = regress(tmp_path, HF.model_copy(update={"max_model_len": 100_000}))
    assert (state.name, status) == ("ConfigurationFailed", None)
    assert not (tmp_path / "stages" / "goldens.json").exists()


def test_clean_vllm_passes_against_the_references_and_against_itself(tmp_path):
    state, status = regress(tmp_path, EngineSpec(model="embedded"))
    assert state.is_completed(), state.message
    assert status.plugins["logit_validation"].verdict is Verdict.PASS
    assert status.plugins["engine_consistency"].verdict is Verdict.PASS
    found = RunDir.at(tmp_path).read(RunDir.at(tmp_path).consistency_json, ConsistencyResult)
    assert [check.verdict for check in found.checks] == [Verdict.PASS] * 4
    assert (tmp_path / "prompt_analysis" / "engine-2.log").stat().st_size > 0
    assert "Engine consistency" in (tmp_path / "combined_report.html").read_text()
