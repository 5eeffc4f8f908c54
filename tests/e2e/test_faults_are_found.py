"""A fault in the engine is found: verdict, phase, module, layer, and the proof by replacement."""

from __future__ import annotations

import pytest

from accuracy_core.schemas import PromptResult, RunDir

pytestmark = pytest.mark.slow


def results(command):
    run_dir = RunDir.at(command.output)
    return [run_dir.read(path, PromptResult) for path in sorted(run_dir.prompt_analysis.glob("*/prompt_result.json"))]


def assert_proven(culprit):
    """With the module replaced the rows are clean; with its inputs replaced they are as bad as before."""
    assert culprit["confirmed"] is True
    output, inputs = culprit["trials"]
    assert (output["kind"], output["module"], output["healed"]) == ("output", culprit["module"], True)
    assert output["l2_after"] < 1.4 < output["l2_before"]
    assert output["guards_after"] == 0 < output["guards_before"]
    assert (inputs["kind"], inputs["module"], inputs["healed"]) == ("inputs", "model.layers.0", False)


def test_a_scaled_mlp_shows_from_the_first_row_on(assay, finished_run):
    clean = results(finished_run[0])
    command = assay("--fault", "mlp-scale")
    text = command.finish()
    assert command.code == 2, text
    report = command.report()
    assert (report["outcome"], report["verdict"], report["banner"]) == ("numerics", "fail", "red")
    culprit = report["culprit"]
    assert (culprit["phase"], culprit["layer"]) == ("both", 1)
    assert culprit["module"] in ("model.layers.1.mlp.down_proj", "model.layers.1.mlp")
    assert_proven(culprit)
    assert culprit["module"] in text
    assert "confirmed by tensor replacement" in text.replace("\n", " ")
    assert report["fault"]["name"] == "mlp-scale"
    assert "module_found" in report["triage"]
    for result in results(command):
        same = next((item for item in clean if item.prompt_token_ids == result.prompt_token_ids), None)
        if same is not None:
            assert result.rows[0].l2 != same.rows[0].l2


def test_a_shifted_kv_slot_shows_after_a_clean_first_row(assay, finished_run):
    clean = {tuple(item.prompt_token_ids): item for item in results(finished_run[0])}
    command = assay("--fault", "kv-slot")
    text = command.finish()
    assert command.code == 2, text
    report = command.report()
    assert (report["verdict"], report["banner"]) == ("fail", "red")
    culprit = report["culprit"]
    assert (culprit["phase"], culprit["layer"]) == ("decode", 1)
    assert culprit["module"] == "model.layers.1.self_attn.attn"
    assert_proven(culprit)
    assert {"kv_bad", "kv_at_fault"} <= set(report["triage"])
    assert "KV or attention suspected" in text
    found = results(command)
    assert found
    for result in found:
        assert not result.rows[0].guards, "the first row comes from prefill, which does not read the cache"
        assert any(row.guards for row in result.rows[1:])
        same = clean.get(tuple(result.prompt_token_ids))
        if same is not None:
            assert result.rows[0].l2 == same.rows[0].l2
