"""Scripts written for the documented API run with only their import lines changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from accuracy_core.models import resolve_model
from tests.e2e.test_faults_are_found import results

PROMPTS = ["Q: 47+38\nA:", "Q: 91-17\nA:"]


@pytest.fixture(scope="module")
def checkpoint() -> str:
    return str(resolve_model("embedded"))


@pytest.fixture(scope="module")
def goldens(checkpoint):
    from transformers import AutoConfig, AutoTokenizer

    from accuracy_core import get_cached_reference_goldens

    return get_cached_reference_goldens(
        model_id="tiny-llama",
        model_checkpoint=checkpoint,
        model_config=AutoConfig.from_pretrained(checkpoint),
        tokenizer=AutoTokenizer.from_pretrained(checkpoint),
        prompts=PROMPTS,
        output_length=8,
    )


def generate_with(goldens, add=0.0):
    """A target that answers each prompt with its BF16 rows: what a `generate_fn` of the design returns."""
    by_prompt = {
        tuple(ids): (logits, fp32)
        for prompt, logits, fp32 in zip(
            goldens["input_ids"], goldens["dtype_logits"], goldens["fp32_logits"], strict=True
        )
        for ids in prompt
    }

    def generate(input_ids: torch.Tensor) -> torch.Tensor:
        row = tuple(input_ids[0].tolist())
        for prompt, (logits, fp32) in by_prompt.items():
            forced = tuple(fp32.argmax(-1)[:, 0].tolist())
            done = len(row) - len(prompt)
            if row[: len(prompt)] == prompt and row[len(prompt) :] == forced[:done]:
                rows = logits[done:].clone().float()
                rows[..., 5] += add
                return rows
        raise AssertionError(f"asked for something else than the reference's own tokens: {row}")

    return generate


def test_goldens_then_multi_prompt_validation(goldens):
    from accuracy_core import multi_prompt_logit_validation

    prompts_input_ids = [[list(ids) for ids in prompt] for prompt in goldens["input_ids"]]
    arguments = {
        "prompts_input_ids": prompts_input_ids,
        "prompts_expected_logits": goldens["dtype_logits"],
        "prompts_baseline_logits": goldens["fp32_logits"],
    }
    result = multi_prompt_logit_validation(generate_fn=generate_with(goldens), **arguments)
    assert result.passed
    assert len(result.per_prompt_results) == 2
    broken = multi_prompt_logit_validation(generate_fn=generate_with(goldens, add=30.0), **arguments)
    assert not broken.passed


def test_basic_validation_and_its_files(goldens, tmp_path):
    from accuracy_core import logit_validation

    passed = logit_validation(
        input_ids=[list(ids) for ids in goldens["input_ids"][0]],
        generate_fn=generate_with(goldens),
        expected_logits=goldens["dtype_logits"][0],
        visualize=True,
        save_logits=True,
        output_dir=str(tmp_path),
    )
    assert passed is True
    for name in ("reference_logits.pt", "target_logits.pt"):
        saved = torch.load(tmp_path / name, weights_only=True)
        assert saved.shape == goldens["dtype_logits"][0].shape
    assert list(tmp_path.rglob("logit_analysis_b0.html"))
    assert list(tmp_path.rglob("logit_analysis_summary.json"))


def test_direct_visualisation(goldens, tmp_path):
    from accuracy_core import visualize_logits

    visualize_logits(
        target_logits=goldens["dtype_logits"][0],
        baseline_logits=goldens["fp32_logits"][0],
        output_dir=str(tmp_path / "logit_comparison"),
    )
    page = (tmp_path / "logit_comparison" / "logit_analysis_b0.html").read_text()
    assert "<script src=" not in page, "pages open without a network"


@pytest.mark.slow
def test_task_analysis_prompt_analysis_and_report(finished_run, checkpoint, tmp_path):
    from accuracy_core import (
        KvCachePlugin,
        LmEvalAnalyzer,
        LogitValPlugin,
        TensorComparePlugin,
        generate_report,
        run_prompt_analysis,
        run_task_analysis,
    )

    out = tmp_path / "accuracy_report"
    task_result = run_task_analysis(
        LmEvalAnalyzer(),
        input_task_results=finished_run[0].output / "eval_results",
        thresholds={"assay_arith/exact_match,flexible-extract": 0.435},
        output_dir=str(out),
    )
    assert task_result.passed is True
    assert task_result.scores["assay_arith/exact_match,flexible-extract"] > 0.435
    result = run_prompt_analysis(
        server_config={"server": {"model": checkpoint, "tp_degree": 1, "max_model_len": 256}},
        prompts=task_result.deviated_prompts[:3],
        plugin_steps=[LogitValPlugin(), KvCachePlugin()],
        output_dir=str(out),
    )
    assert result.plugin_results["logit_validation"].verdict == "pass"
    assert result.plugin_results["kv_cache"].verdict == "pass"
    tensors = run_prompt_analysis(
        server_config={"server": {"model": checkpoint, "tp_degree": 1, "max_model_len": 256}},
        prompts=task_result.deviated_prompts[:3],
        plugin_steps=[TensorComparePlugin(modules=["model.embed_tokens", "model.layers.0-3", "lm_head"], tp_size=1)],
        output_dir=str(out),
        output_length=3,
    )
    assert tensors.plugin_results["tensor_compare"].verdict == "pass"
    page = generate_report(str(out))
    assert Path(page) == out / "combined_report.html"
    report = json.loads((out / "report.json").read_text())
    assert {name: plugin["verdict"] for name, plugin in report["plugins"].items()} == {
        "logit_validation": "pass", "kv_cache": "pass", "tensor_compare": "pass",
    }  # fmt: skip
    assert (report["outcome"], report["banner"]) == ("numerics", "green")


@pytest.mark.slow
def test_the_flow_and_the_functions_judge_alike(finished_run):
    found = results(finished_run[0])
    assert [item.verdict for item in found] == ["pass"] * 3
    assert all(item.engine_route == "forced_decode" for item in found)
