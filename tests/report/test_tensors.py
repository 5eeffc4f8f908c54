"""Module tensors, the culprit and its proof, on the page and in report.json."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from report_run_dirs import Recipe, build
from report_tensors import taps, tensor_result

from accuracy_core.prompts.triage_tree import load_triage_tree
from accuracy_core.report import generate_report
from accuracy_core.report.tensor_columns import tensor_columns, wrong_rows
from accuracy_core.schemas import KvPattern, ModuleMetrics, Phase, RunDir, TensorCompareResult

ATTENTION = "model.layers.1.self_attn.attn"
KV_SLOT = Recipe(
    n_prompts=4, bad_prompts=(1, 3), bad_tokens=tuple(range(1, 16)), routes_pass=False, module=ATTENTION,
    pattern=KvPattern.SHIFTED,
)  # fmt: skip


def made(root, recipe):
    build(root, recipe)
    path = generate_report(root)
    return Path(path).read_text(encoding="utf-8"), json.loads((root / "report.json").read_text())


def block(page, name):
    return page.split(f'id="h-{name}"')[1].split("</section>")[0]


def test_the_culprit_is_named_with_its_proof(tmp_path):
    page, document = made(tmp_path, KV_SLOT)
    culprit = block(page, "culprit")
    assert ATTENTION in culprit
    assert "Confirmed by replacement" in culprit
    assert re.search(r"<dt>Head</dt><dd>0</dd>", culprit)
    assert re.search(r"<dt>Position</dt><dd>13</dd>", culprit)
    assert "<b>12.4</b>" in culprit
    assert "<b>1.02</b>" in culprit
    assert ">gone<" in culprit
    assert ">stays<" in culprit
    assert document["culprit"]["confirmed"] is True
    assert document["culprit"]["trials"][0]["l2_after"] == 1.02
    assert document["escalation"]["plugins"] == ["tensor_compare", "kv_cache"]
    assert ATTENTION in document["headline"]


@pytest.mark.parametrize(("confirmed", "words"), [(None, "cannot replace tensors"), (False, "Not confirmed")])
def test_what_is_not_confirmed_says_so(tmp_path, confirmed, words):
    recipe = Recipe(bad_prompts=(1,), bad_tokens=(0, 1), routes_pass=False, module=ATTENTION, confirmed=confirmed)
    page, document = made(tmp_path, recipe)
    assert words in block(page, "culprit")
    assert "Confirmed by replacement" not in page
    assert document["culprit"]["confirmed"] is confirmed


def test_the_trees_of_modules_and_cache_are_lit(tmp_path):
    page, document = made(tmp_path, KV_SLOT)
    assert {"module_found", "attention_kernel", "kv_bad", "kv_at_fault", "kv_shifted"} <= set(document["triage"])
    labels = {node.id: node.label for node in load_triage_tree().node}
    lit = re.findall(r'<li class="lit">\s*<div class="node"><span class="node-label">([^<]+)', page)
    for name in ("module_found", "attention_kernel", "kv_shifted"):
        assert labels[name] in lit
    assert labels["mlp"] not in lit


def test_every_prompt_says_what_its_plugins_found(tmp_path):
    page, document = made(tmp_path, KV_SLOT)
    first, second = document["prompts"][0], document["prompts"][1]
    assert set(first["verdicts"]) == {"logit_validation"}
    assert set(second["verdicts"]) == {"logit_validation", "tensor_compare", "kv_cache"}
    assert second["first_divergent"]["module"] == ATTENTION
    assert second["wrong_modules"] == [ATTENTION]
    assert second["kv_pattern"] == "shifted"
    assert second["kv_first_bad"] == {"layer": 1, "head": 0, "position": 13, "which": "key"}
    card = re.findall(r'<a class="card [^>]*href="#prompt-1">.*?</a>', page, re.DOTALL)[0]
    assert ATTENTION in card


def test_the_module_table_marks_the_first_divergent_one(tmp_path):
    page, _ = made(tmp_path, KV_SLOT)
    section = page.split('id="prompt-1"')[1].split("</article>")[0]
    rows = re.findall(r'<tr class="bad first">.*?</tr>', section)
    assert len(rows) == 1
    assert ATTENTION in rows[0]
    assert "decode" in rows[0]
    assert page.count("data-tensors=") == 2, "only the prompts that were compared"


def test_columns_are_in_order_of_execution_and_hold_no_number_json_lacks():
    result = tensor_result(0, ATTENTION, Phase.DECODE)
    broken = result.modules[5].model_copy(update={"local_ratio": float("inf"), "bc": float("nan")})
    shuffled = result.model_copy(update={"modules": [*result.modules[6:], broken, *result.modules[:5]]})
    columns = tensor_columns(shuffled)
    assert columns["phases"]["prefill"]["module"] == taps()
    assert columns["phases"]["prefill"]["local_ratio"][5] is None
    names = [columns["phases"]["decode"]["module"][i] for i in columns["phases"]["decode"]["depth"]]
    assert names == ["model.embed_tokens", *(f"model.layers.{layer}" for layer in range(4))]
    assert columns["first"] == {"module": ATTENTION, "phase": "decode", "local": True}
    assert columns["progression"]["taps"] == names[1:]
    json.dumps(columns, allow_nan=False)


def test_a_long_progression_is_thinned_and_keeps_the_worst_position():
    values = [0.01] * 5000
    values[4321] = 7.0
    result = TensorCompareResult(index=0, progression={"model.layers.0": values})
    found = tensor_columns(result)["progression"]
    assert len(found["values"][0]) == len(found["positions"]) <= 400
    assert max(found["values"][0]) == 7.0
    assert found["positions"][1] == 13


def test_wrong_modules_come_in_order_of_execution_prefill_first():
    rows = [row for row in tensor_result(0, ATTENTION).modules if row.verdict.value == "fail"]
    found = wrong_rows(TensorCompareResult(index=0, modules=[*reversed(rows)]))
    assert [(row.module, row.phase) for row in found] == [(ATTENTION, Phase.PREFILL), (ATTENTION, Phase.DECODE)]


def test_names_from_a_checkpoint_are_escaped(tmp_path):
    build(tmp_path, KV_SLOT)
    run_dir = RunDir.at(tmp_path)
    attack = "</script><img src=x onerror=alert(1)>"
    row = ModuleMetrics(module=attack, order=0, phase=Phase.PREFILL, rows=1, problem=attack, verdict="fail")
    result = tensor_result(1, ATTENTION).model_copy(
        update={"modules": [row], "missing": {attack: attack}, "error": attack}
    )
    run_dir.write(run_dir.prompt_result(1, "tensor_compare"), result)
    page = Path(generate_report(tmp_path)).read_text(encoding="utf-8")
    assert "<img src=x" not in page
    assert "&lt;img src=x" in page


def test_a_damaged_result_costs_its_sections_only(tmp_path):
    build(tmp_path, KV_SLOT)
    RunDir.at(tmp_path).prompt_result(1, "tensor_compare").write_text("{")
    page = Path(generate_report(tmp_path)).read_text(encoding="utf-8")
    document = json.loads((tmp_path / "report.json").read_text())
    assert "tensor_compare" in document["section_errors"]
    assert document["culprit"]["module"] == ATTENTION, "the decision was written down"
    assert "Task analysis" in page


def test_the_scale_of_ratios_does_not_overlap(tmp_path):
    page, _ = made(tmp_path, Recipe())
    legend = block(page, "legend")
    assert "up to 1.5×" in legend
    assert "up to 2×" in legend
    assert "beyond 2×" in legend
    assert "≫ 1.5×" not in page
