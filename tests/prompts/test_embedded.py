"""The whole prompt analysis on the embedded model, with the reference's own library as the target."""

from __future__ import annotations

import os

import pytest

from accuracy_core.outcome import Verdict
from accuracy_core.prompts import conclude, run_prompt_analysis
from accuracy_core.prompts.triage import phase_text
from accuracy_core.schemas import (
    ComparisonSummary,
    DeviatedPrompt,
    DeviatedPrompts,
    EngineSpec,
    FaultSpec,
    Phase,
    PromptResult,
    RunDir,
)

pytestmark = pytest.mark.slow

TEXTS = ["Q: 47+38\nA:", "Q: 91-27\nA:", "Q: 3+99\nA:"]


@pytest.fixture(scope="module")
def goldens_dir(tmp_path_factory):
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    return tmp_path_factory.mktemp("goldens")


def analyse(tmp_path, goldens_dir, prompts, fault=None, dtype="bfloat16"):
    spec = EngineSpec(
        model="embedded", engine="transformers", dtype=dtype, fault=FaultSpec(name=fault) if fault else None
    )
    return run_prompt_analysis(spec, prompts, ["logit_validation"], tmp_path, goldens_dir=goldens_dir)


def test_a_clean_target_passes_on_the_curated_set(tmp_path, goldens_dir):
    result = analyse(tmp_path, goldens_dir, DeviatedPrompts())
    assert result.passed
    assert result.status.curated
    assert len(result.prompts) == 8
    assert result.status.culprit is None
    assert len(result.status.plugins["logit_validation"].per_prompt) == 8


def test_float32_passes_too(tmp_path, goldens_dir):
    result = analyse(tmp_path, goldens_dir, TEXTS, dtype="float32")
    assert result.passed
    routes = {route.route: route.passed for route in result.status.plugins["logit_validation"].routes}
    assert routes == {"two_way": True, "sigma_ratio": None, "agg_bc": None}
    assert [finding.check for finding in result.status.findings] == ["three_way"]


def test_mlp_scale_is_bad_from_the_first_row_on(tmp_path, goldens_dir):
    result = analyse(tmp_path, goldens_dir, TEXTS, fault="mlp-scale")
    assert result.verdict is Verdict.FAIL
    assert result.status.phase is Phase.BOTH
    culprit = result.status.culprit
    assert phase_text(culprit.phase) == "both"
    assert (culprit.module, culprit.layer, culprit.confirmed) == ("model.layers.1.mlp", 1, True)
    assert [trial.healed for trial in culprit.trials] == [True, False]
    summary = RunDir.at(tmp_path).tensor_compare / "comparison_summary.json"
    assert ComparisonSummary.from_json(summary.read_text()).confirmed is True
    assert conclude(None, result.status).exit_code == 2


def test_kv_slot_is_bad_after_the_first_row_only(tmp_path, goldens_dir):
    result = analyse(tmp_path, goldens_dir, TEXTS, fault="kv-slot")
    assert result.verdict is Verdict.FAIL
    assert result.status.phase is Phase.DECODE
    culprit = result.status.culprit
    assert phase_text(culprit.phase) == "decode (KV or attention suspected)"
    assert (culprit.module, culprit.layer, culprit.confirmed) == ("model.layers.1.self_attn.attn", 1, True)
    assert "kv_at_fault" in culprit.branch
    run_dir = RunDir.at(tmp_path)
    for prompt in result.prompts:
        rows = run_dir.read(run_dir.prompt_result(prompt.index, "logit_validation"), PromptResult).rows
        assert not rows[0].bad
        assert rows[0].l2_ratio < 1.5
        assert any(row.bad for row in rows[1:])


def test_a_deviated_prompt_with_the_servers_ids(tmp_path, goldens_dir):
    ids = [0, 52, 29, 4]
    item = DeviatedPrompt(task="t", doc_id=4, prompt="Q: 1", token_ids=ids)
    result = analyse(tmp_path, goldens_dir, [item])
    assert result.passed
    found = PromptResult.from_json((tmp_path / "prompt_analysis/prompt_0/prompt_result.json").read_text())
    assert found.prompt_token_ids == ids
    assert found.golden_key
    assert found.engine_route == "forced_decode"
    assert len(found.tokens) == len(found.rows) == 16
