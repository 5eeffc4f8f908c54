"""Runs judge by the limits of their calibration: tight ones fail a clean target, wide ones pass a broken one."""

from __future__ import annotations

from pathlib import Path

import pytest

from accuracy_core.calibration.measurement import device_name
from accuracy_core.outcome import Verdict
from accuracy_core.pipeline.prompt_stage import analyse_prompts, prepare_analysis
from accuracy_core.pipeline.run import resolve_run
from accuracy_core.report import generate_report
from accuracy_core.schemas import EngineSpec, FaultSpec, PromptParameters, RunParameters
from tests.calibration.test_shipped import shipped as shipped

pytestmark = pytest.mark.slow

PROMPTS = ["Q: 47+38\nA:", "Q: 91-27\nA:", "Q: 3+99\nA:"]
PLUGINS = ["logit_validation", "kv_cache", "tensor_compare"]
WIDE_GUARDS = ("l2_ratio", "linf_ratio", "flip_noise_multiple", "winner_noise_multiple", "pooled_l2_ratio")


@pytest.fixture
def analyse(tmp_path, shipped):
    """`analyse(tolerances, fault)` runs the prompt analysis on the embedded model, judged by these tolerances."""

    def run(tolerances, fault=None, *, triage=False, **changes):
        file = tmp_path / "calibration.json"
        calibration = shipped.model_copy(update={"device": device_name(), "tolerances": tolerances, **changes})
        file.write_text(calibration.to_json())
        engine = EngineSpec(
            model="embedded", engine="transformers", max_model_len=128, fault=FaultSpec(name=fault) if fault else None
        )
        given = PromptParameters(
            prompts=PROMPTS, plugins=PLUGINS, triage=triage, tolerances=str(file), force_calibration=bool(changes)
        )
        parameters = RunParameters(
            engine=engine, prompt_analysis=given, stages=["prompt_analysis"], output_dir=str(tmp_path / "run"),
            goldens_dir=str(tmp_path / "goldens"),
        )  # fmt: skip
        resolved = resolve_run(parameters)
        return resolved, analyse_prompts(resolved, prepare_analysis(resolved))

    return run


def verdicts(status):
    return {name: plugin.verdict for name, plugin in status.plugins.items()}


def test_the_measured_limits_pass_what_is_clean_and_find_what_is_not(analyse, shipped):
    _, status = analyse(shipped.tolerances)
    assert set(verdicts(status).values()) == {Verdict.PASS}
    _, status = analyse(shipped.tolerances, "mlp-scale", triage=True)
    assert status.verdict is Verdict.FAIL
    assert status.culprit.module == "model.layers.1.mlp"


def test_tight_limits_fail_what_is_clean(analyse, shipped):
    limits = shipped.tolerances
    guards = limits.guards.model_copy(update={"l2_ratio": 0.5, "l2_run_envelope": 0.0})
    tensors = {**limits.extra["tensors"], "projection": 1e-6, "norm": 1e-6}
    _, status = analyse(limits.model_copy(update={"guards": guards, "extra": {**limits.extra, "tensors": tensors}}))
    found = verdicts(status)
    assert found["logit_validation"] is Verdict.SUSPECT
    assert status.plugins["logit_validation"].worst.guard == "l2_ratio"
    assert found["tensor_compare"] is Verdict.FAIL


def test_wide_limits_pass_what_is_broken(analyse, shipped):
    limits = shipped.tolerances
    guards = limits.guards.model_copy(update=dict.fromkeys(WIDE_GUARDS, 1e9))
    wide = {
        part: {name: 1e9 if name in names else value for name, value in limits.extra[part].items()}
        for part, names in {
            "kv": ("l2_ratio", "linf_ratio", "head_ratio"),
            "tensors": ("projection", "norm", "kernel", "row", "head", "cell", "scale"),
        }.items()
    }
    top_k = {key: (atol, 1e9) for key, (atol, _) in limits.top_k.items()}
    _, status = analyse(shipped.tolerances, "mlp-scale")
    assert Verdict.PASS not in verdicts(status).values()
    _, status = analyse(
        limits.model_copy(update={"guards": guards, "top_k": top_k, "n_ulps": 1e9, "extra": {**limits.extra, **wide}}),
        "mlp-scale",
    )
    assert set(verdicts(status).values()) == {Verdict.PASS}


def test_a_forced_calibration_is_said_in_the_report(analyse, shipped):
    run, status = analyse(shipped.tolerances, model_fingerprint="0" * 64)
    said = next(finding for finding in status.findings if finding.check == "calibration")
    assert "model 000000000000" in said.evidence
    page = Path(generate_report(run.run_dir)).read_text(encoding="utf-8")
    assert "Calibration of another target:</strong> limits calibrated" in page
    assert run.findings == [said]
