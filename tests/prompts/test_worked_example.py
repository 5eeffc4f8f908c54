"""The worked example of docs/prompt-analysis.md: a real fault of the engine, named by its module and proven."""

from __future__ import annotations

import pytest

from accuracy_core.models.architectures import architecture_checkpoint
from accuracy_core.outcome import Verdict
from accuracy_core.prompts import run_prompt_analysis
from accuracy_core.schemas import EngineSpec, Phase, RunDir, TensorCompareResult

pytestmark = pytest.mark.slow


def test_latent_attention_in_vllm_on_the_cpu_rotates_queries_wrongly_in_every_layer(tmp_path):
    spec = EngineSpec(model=str(architecture_checkpoint("deepseek-v2")), dtype="float32", max_model_len=128)
    status = run_prompt_analysis(spec, ["Q: 12+34\nA:"], ["logit_validation"], tmp_path, 6).status
    assert status.verdict is Verdict.FAIL
    run_dir = RunDir.at(tmp_path)
    found = run_dir.read(run_dir.prompt_result(0, "tensor_compare"), TensorCompareResult)
    assert found.first_divergent.module == "model.layers.0.self_attn.query"
    wrong_by_itself = {row.module.split(".", 3)[3] for row in found.modules if row.local_l2 > 1e-4}
    assert wrong_by_itself == {"self_attn.query", "self_attn.attn"}
    culprit = status.culprit
    assert (culprit.phase, culprit.layer) == (Phase.BOTH, 0)
    assert "rope" in culprit.branch
    assert culprit.module == "model.layers.0.self_attn.query"
    healed = [trial for trial in culprit.trials if trial.healed]
    assert [(trial.kind, trial.module) for trial in healed] == [("together", culprit.module)]
    assert healed[0].l2_after < 1e-4 < healed[0].l2_before
    assert culprit.confirmed is True
