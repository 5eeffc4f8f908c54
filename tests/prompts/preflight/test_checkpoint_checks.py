"""Every wrong set-up that the files give away is found, with what to do; a right one gives no error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from accuracy_core.outcome import Outcome
from accuracy_core.prompts.preflight import PREFLIGHT_CHECKS, PreflightReport, checkpoint_facts, run_preflight
from accuracy_core.schemas import EngineSpec, Finding, Severity
from tests.prompts.preflight.conftest import Checkpoint

HEAD = "lm_head.weight"


def examine(checkpoint: Checkpoint, **spec: Any) -> PreflightReport:
    facts = checkpoint_facts(EngineSpec(model=str(checkpoint.folder), **spec), checkpoint.folder)
    return run_preflight(facts, ["checkpoint", "tokenizer"])


def only_error(report: PreflightReport) -> Finding:
    (finding,) = {item.check: item for item in report.errors}.values()
    assert finding.fix
    assert finding.outcome is Outcome.CONFIGURATION
    return finding


def test_the_bundled_model_has_no_errors(checkpoint):
    report = examine(checkpoint)
    assert report.errors == []
    assert not report.not_measured
    assert set(report.checks) == {
        name for name, check in PREFLIGHT_CHECKS.items() if check.needs in ("checkpoint", "tokenizer")
    }


@pytest.mark.parametrize(
    ("spec", "check", "says"),
    [
        ({"dtype": "float16"}, "dtype", "65504"),
        ({"max_model_len": 512}, "max_model_len", "256"),
        ({"hf_overrides": {"tie_word_embeddings": True}}, "tied_embeddings", "hf_overrides"),
        ({"hf_overrides": {"rope_parameters": {"rope_type": "default", "rope_theta": 2e4}}}, "rope_scaling", "10000.0"),
        ({"engine_args": {"override_generation_config": {"temperature": 0.7}}}, "sampling_defaults", "0.7"),
        (
            {"engine_args": {"override_generation_config": {"repetition_penalty": 1.3}}},
            "sampling_defaults",
            "repetition_penalty",
        ),
    ],
)
def test_an_engine_argument_that_breaks_the_comparison(checkpoint, spec, check, says):
    finding = only_error(examine(checkpoint, **spec))
    assert finding.check == check
    assert says in finding.evidence


def _drop_layer(tensors):
    del tensors["model.layers.2.mlp.down_proj.weight"]


def _pad_head(tensors):
    tensors[HEAD] = torch.cat([tensors[HEAD], torch.zeros(4, tensors[HEAD].shape[1], dtype=tensors[HEAD].dtype)])


def _narrow(scale: torch.Tensor | None) -> Callable[[dict[str, Any]], None]:
    def change(tensors):
        name = "model.layers.0.mlp.down_proj.weight"
        tensors[name] = tensors[name].to(torch.float8_e4m3fn)
        if scale is not None:
            tensors[name + "_scale"] = scale

    return change


@pytest.mark.parametrize(
    ("change", "checks", "says"),
    [
        (_drop_layer, {"weights"}, "model.layers.2.mlp.down_proj.weight"),
        (_pad_head, {"vocabulary", "weights"}, "264 rows"),
    ],
)
def test_weights_that_do_not_fit_the_config(checkpoint, change, checks, says):
    checkpoint.weights(change)
    report = examine(checkpoint)
    assert {finding.check for finding in report.errors} == checks
    assert any(says in finding.evidence for finding in report.errors)
    assert all(finding.fix for finding in report.errors)


@pytest.mark.parametrize(
    ("scale", "says"),
    [
        (None, "no scale"),
        (torch.ones(7), "(7,)"),
        (torch.full((128,), float("nan")), "NaN"),
        (torch.zeros(1), "zero or negative"),
    ],
)
def test_a_quantised_weight_with_a_scale_that_is_not_its_own(checkpoint, scale, says):
    checkpoint.weights(_narrow(scale))
    checkpoint.config(quantization_config={"quant_method": "fp8", "activation_scheme": "dynamic"})
    facts = checkpoint_facts(EngineSpec(model=str(checkpoint.folder)), checkpoint.folder, load=False)
    finding = only_error(run_preflight(facts, ["checkpoint"]))
    assert finding.check == "quantization"
    assert says in finding.evidence


@pytest.mark.parametrize("scale", [torch.ones(128), torch.ones(128, 1), torch.ones(1), torch.tensor(0.5)])
def test_scales_that_fit_are_fine(checkpoint, scale):
    checkpoint.weights(_narrow(scale))
    checkpoint.config(quantization_config={"quant_method": "fp8", "activation_scheme": "dynamic"})
    facts = checkpoint_facts(EngineSpec(model=str(checkpoint.folder)), checkpoint.folder, load=False)
    assert run_preflight(facts, ["checkpoint"]).errors == []


def test_eight_bit_weights_without_a_declaration(checkpoint):
    checkpoint.weights(_narrow(torch.ones(128)))
    facts = checkpoint_facts(EngineSpec(model=str(checkpoint.folder)), checkpoint.folder, load=False)
    assert "quantization_config" in only_error(run_preflight(facts, ["checkpoint"])).evidence


def test_a_tied_flag_that_hides_an_lm_head(checkpoint):
    checkpoint.config(tie_word_embeddings=True)
    finding = only_error(examine(checkpoint))
    assert finding.check == "tied_embeddings"
    assert HEAD in finding.evidence


def test_a_tied_flag_that_was_dropped(checkpoint):
    checkpoint.weights(lambda tensors: tensors.pop(HEAD))
    errors = {finding.check for finding in examine(checkpoint).errors}
    assert errors == {"tied_embeddings", "weights"}


def test_a_tied_checkpoint_may_store_its_embedding_twice(checkpoint):
    checkpoint.config(tie_word_embeddings=True)
    checkpoint.weights(lambda tensors: tensors.update({HEAD: tensors["model.embed_tokens.weight"].clone()}))
    assert examine(checkpoint).errors == []


LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip


def test_rotary_scaling_that_reaches_as_far_as_the_config_says(checkpoint):
    checkpoint.config(rope_parameters={**LLAMA3, "factor": 4.0})
    assert examine(checkpoint).errors == []


def test_a_rope_factor_that_was_dropped(checkpoint):
    checkpoint.config(rope_parameters=LLAMA3)
    facts = checkpoint_facts(EngineSpec(model=str(checkpoint.folder)), checkpoint.folder, load=False)
    finding = only_error(run_preflight(facts, ["checkpoint"]))
    assert (finding.check, "no factor" in finding.evidence) == ("rope_scaling", True)


def test_a_rope_factor_too_small_for_the_length(checkpoint):
    checkpoint.config(rope_parameters={**LLAMA3, "factor": 2.0})
    assert "128" in only_error(examine(checkpoint)).evidence


def test_an_override_that_drops_the_factor(checkpoint):
    checkpoint.config(rope_parameters={**LLAMA3, "factor": 4.0})
    report = examine(checkpoint, hf_overrides={"rope_scaling": {key: LLAMA3[key] for key in LLAMA3}})
    assert "factor: 4.0 → None" in only_error(report).evidence


def test_sampling_defaults_of_the_checkpoint_are_a_warning(checkpoint):
    checkpoint.generation(do_sample=True, top_k=64, top_p=0.95)
    report = examine(checkpoint)
    assert report.errors == []
    (finding,) = [item for item in report.findings if item.check == "sampling_defaults"]
    assert finding.severity is Severity.WARNING
    assert "'top_k': 64" in finding.evidence


@pytest.mark.parametrize(("swapped", "says"), [((40, 41), "differ on"), ((258, 259), "2 tokens have other ids")])
def test_another_tokenizer_revision(checkpoint, tmp_path, swapped, says):
    """Also one that no text at hand tells apart."""
    import shutil

    other = tmp_path / "tokenizer"
    shutil.copytree(checkpoint.folder, other)
    text = (other / "tokenizer.json").read_text(encoding="utf-8")
    import json

    data = json.loads(text)
    vocab = data["model"]["vocab"]
    first, second = (next(key for key, value in vocab.items() if value == index) for index in swapped)
    vocab[first], vocab[second] = vocab[second], vocab[first]
    (other / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    finding = only_error(examine(checkpoint, tokenizer=str(other)))
    assert finding.check == "tokenizer"
    assert says in finding.evidence


def test_the_same_tokenizer_elsewhere_is_fine(checkpoint, tmp_path):
    import shutil

    shutil.copytree(checkpoint.folder, tmp_path / "copy")
    assert examine(checkpoint, tokenizer=str(tmp_path / "copy")).errors == []


def test_a_tokenizer_with_more_ids_than_embeddings(checkpoint):
    checkpoint.config(vocab_size=200)

    def cut(tensors):
        for name in (HEAD, "model.embed_tokens.weight"):
            tensors[name] = tensors[name][:200].clone()

    checkpoint.weights(cut)
    finding = only_error(examine(checkpoint))
    assert (finding.check, "200 embeddings" in finding.evidence) == ("vocabulary", True)


def test_a_check_that_fails_is_not_measured_and_costs_only_itself(checkpoint, monkeypatch):
    import dataclasses

    def broken(facts):
        raise RuntimeError("no such luck")

    check = dataclasses.replace(PREFLIGHT_CHECKS["dtype"], run=broken)
    monkeypatch.setitem(PREFLIGHT_CHECKS, "dtype", check)
    report = examine(checkpoint, max_model_len=512)
    assert only_error(report).check == "max_model_len"
    assert [item.check for item in report.not_measured] == ["dtype"]
