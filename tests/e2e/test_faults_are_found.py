"""A fault in the engine is found through rows alone, and its phase is right."""

from __future__ import annotations

import pytest

from accuracy_core.schemas import PromptResult, RunDir

pytestmark = pytest.mark.slow


def results(command):
    run_dir = RunDir.at(command.output)
    return [run_dir.read(path, PromptResult) for path in sorted(run_dir.prompt_analysis.glob("*/prompt_result.json"))]


def test_a_scaled_mlp_shows_from_the_first_row_on(assay, finished_run):
    clean = results(finished_run[0])
    command = assay("--fault", "mlp-scale")
    text = command.finish()
    assert command.code == 2, text
    report = command.report()
    assert (report["outcome"], report["verdict"], report["banner"]) == ("numerics", "fail", "red")
    assert report["culprit"]["phase"] == "both"
    assert report["fault"]["name"] == "mlp-scale"
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
    assert report["culprit"]["phase"] == "decode"
    assert "KV or attention suspected" in text
    found = results(command)
    assert found
    for result in found:
        assert not result.rows[0].guards, "the first row comes from prefill, which does not read the cache"
        assert any(row.guards for row in result.rows[1:])
        same = clean.get(tuple(result.prompt_token_ids))
        if same is not None:
            assert result.rows[0].l2 == same.rows[0].l2
