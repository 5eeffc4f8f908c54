"""TensorComparePlugin: arguments, refusals before the work, what it asks of an engine and says of its answers."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from accuracy_core import TensorComparePlugin
from accuracy_core.capture.hf_taps import available_taps
from accuracy_core.capture.model import TensorCaptureModel
from accuracy_core.capture.taps import tap_tensor_name
from accuracy_core.engines.protocol import Capabilities
from accuracy_core.errors import ConfigurationError, NotMeasuredError
from accuracy_core.models.architectures import architecture_config, initialise
from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.prompts import PLUGIN_REGISTRY, PluginContext
from accuracy_core.prompts.plugins.tensor_summary import culprit_of, summarise
from accuracy_core.prompts.plugins.tensor_target import capturing_engine, layer_problem
from accuracy_core.prompts.prepared import PreparedPrompt
from accuracy_core.schemas import (
    ComparisonSummary,
    EngineSpec,
    Phase,
    ReplayRequest,
    ReplayResult,
    RunDir,
    TensorCompareResult,
)

PROMPTS = [[5, 77, 130, 9, 9, 201, 44, 18, 3, 250], [17, 4, 99, 8, 63, 12, 250, 31]]
TOKENS = 5


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer Llama in bfloat16."""
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("llama")
    config = architecture_config(
        "llama", hidden_size=64, intermediate_size=96, head_dim=16, num_hidden_layers=2, vocab_size=264
    )
    model = AutoModelForCausalLM.from_config(config)
    initialise(model, seed=0)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


class TapEngine:
    """Answers with the tensors of a Hugging Face model, under canonical names; `change` breaks them first."""

    name = "transformers"

    def __init__(
        self, checkpoint: Path, scratch: Path, spec: EngineSpec, change: Any = None, hooks: bool = True
    ) -> None:
        from transformers import AutoModelForCausalLM

        self.spec = spec
        self.capabilities = Capabilities(forced_decode=True, raw_logits=True, hooks=hooks)
        self.model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16).eval()
        self.scratch, self.change = scratch, change
        self.asked: list[ReplayRequest] = []

    def module_names(self) -> dict[str, str]:
        return dict.fromkeys(available_taps(self.model), "")

    def replay(self, requests: list[ReplayRequest], on_progress: Any = None) -> list[ReplayResult]:
        self.asked += requests
        return [self._one(request) for request in requests]

    def _one(self, request: ReplayRequest) -> ReplayResult:
        forced = request.forced_token_ids
        captured = TensorCaptureModel(self.model).capture(request.prompt_token_ids, forced)
        tensors = {tap: rows.clone() for tap, rows in captured.items()}
        if self.change is not None:
            self.change(tensors)
        logits = tensors.pop("lm_head")[-len(forced) :].float()
        wanted = {tap_tensor_name(f"{tap}:out0"): rows for tap, rows in tensors.items()}
        wanted = {name: rows for name, rows in wanted.items() if name.removeprefix("tap.") in request.capture.modules}
        path = self.scratch / f"{request.request_id}.safetensors"
        save_file({"logits": logits, **{name: rows.contiguous() for name, rows in wanted.items()}}, path)
        return ReplayResult(request_id=request.request_id, token_ids=forced, tensors=str(path), names=list(wanted))

    def close(self) -> None:
        pass


class Case:
    def __init__(
        self, tmp_path: Path, checkpoint: Path, change: Any = None, hooks: bool = True, **options: Any
    ) -> None:
        spec = EngineSpec(model=str(checkpoint), dtype="bfloat16", max_model_len=64)
        self.engine = TapEngine(checkpoint, tmp_path, spec, change, hooks)
        self.plugin = TensorComparePlugin(goldens_dir=tmp_path / "goldens", **options)
        self.run_dir = RunDir.at(tmp_path / "run").create()
        self.ctx = PluginContext(
            checkpoint=str(checkpoint),
            prompts=tuple(map(tuple, PROMPTS)),
            prepared=tuple(PreparedPrompt(index=i, token_ids=ids, source="token_ids") for i, ids in enumerate(PROMPTS)),
            server_config=spec,
            output_length=TOKENS,
            output_dir=self.run_dir,
            dtype="bfloat16",
            engine=self.engine,  # type: ignore[arg-type]
        )

    def run(self) -> dict[str, Any]:
        self.plugin.pre_llm(self.ctx)
        results = self.plugin.run(self.ctx)
        self.plugin.save(self.ctx, results)
        return results


def test_it_is_registered_under_its_documented_name_and_takes_the_documented_arguments() -> None:
    assert PLUGIN_REGISTRY["tensor_compare"] is TensorComparePlugin
    plugin = TensorComparePlugin(modules=["model.embed_tokens", "model.layers.0-31", "lm_head"], tp_size=8)
    assert (plugin.needs_shared_llm, plugin.max_l2_ratio, plugin.tp_size) == (False, 3.0, 8)
    assert TensorComparePlugin().modules == ()


@pytest.mark.parametrize("options", [{"modules": "lm_head"}, {"tp_size": 0}, {"max_l2_ratio": float("nan")}])
def test_arguments_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        TensorComparePlugin(**options)


@pytest.mark.slow
def test_clean_target_passes_and_leaves_the_documented_files(tmp_path: Path, checkpoint: Path) -> None:
    case = Case(tmp_path, checkpoint)
    results = case.run()
    assert results["passed"] is True
    assert results["culprit"] is None
    assert results["status"].per_prompt == {"0": Verdict.PASS, "1": Verdict.PASS}
    forced = [request.forced_token_ids for request in case.engine.asked]
    assert [len(tokens) for tokens in forced] == [TOKENS, TOKENS]
    root = case.run_dir.tensor_compare
    assert isinstance(root, Path)
    for side in ("hf_fp32", "hf_bf16", "cpu"):
        assert (root / side / "dp0" / f"prefill_s{len(PROMPTS[0])}" / "prompt_0.safetensors").is_file()
        assert (root / side / "dp0" / "decode_b1" / "prompt_1.safetensors").is_file()
    summary = ComparisonSummary.from_json((root / "comparison_summary.json").read_text())
    assert (summary.verdict, summary.target, summary.max_l2_ratio) == (Verdict.PASS, "cpu", 3.0)
    saved = TensorCompareResult.from_json(case.run_dir.prompt_result(1, "tensor_compare").read_text())
    assert {row.module for row in saved.modules} == set(available_taps(case.engine.model))
    assert len(saved.progression["model.layers.1"]) == saved.positions == len(PROMPTS[1]) + TOKENS - 1
    assert not list(tmp_path.glob("*.safetensors"))  # the engine's files are gone


def test_a_head_that_is_wrong_in_decode_is_named_on_every_level(tmp_path: Path, checkpoint: Path) -> None:
    tap = "model.layers.1.self_attn.attn"

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[tap][-2:, 16:32] *= 1.5

    results = Case(tmp_path, checkpoint, change, modules=["model.layers.1"], save_captures=False).run()
    assert results["passed"] is False
    found = results["culprit"]
    assert (found.module, found.layer, found.head, found.phase) == (tap, 1, 1, Phase.DECODE)
    assert found.position == len(PROMPTS[0]) + TOKENS - 3
    assert results["summary"].first_divergent == results["first_divergent"]
    assert results["tensor_results"][0].guards[0].token == 3


@pytest.mark.slow
def test_a_wrong_width_and_a_nan_fail_and_are_named(tmp_path: Path, checkpoint: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.mlp"] = torch.zeros(tensors["model.layers.0.mlp"].shape[0], 65, dtype=torch.bfloat16)
        tensors["model.norm"][-1, 3] = float("nan")

    results = Case(tmp_path, checkpoint, change, modules=["model.layers.0.mlp", "model.norm"]).run()
    (wrong,) = [row for row in results["tensor_results"][0].modules if row.problem]
    assert wrong.module == "model.layers.0.mlp"
    assert "(14, 65)" in wrong.problem
    assert "(14, 64)" in wrong.problem
    bad = [row for row in results["tensor_results"][0].modules if row.nonfinite]
    assert [(row.module, row.worst_position) for row in bad] == [("model.norm", 13)]
    assert results["first_divergent"].module == "model.layers.0.mlp"


def test_a_pattern_that_matches_nothing_is_refused_before_any_work(tmp_path: Path, checkpoint: Path) -> None:
    case = Case(tmp_path, checkpoint, modules=["model.layers.0-1", "model.layer.5.mlp"])
    with pytest.raises(ConfigurationError, match="matches nothing") as caught:
        case.plugin.pre_llm(case.ctx)
    assert "model.layers." in caught.value.fix
    assert not (tmp_path / "goldens").exists() or not list((tmp_path / "goldens").rglob("*.safetensors"))


def test_captures_that_would_fill_the_disk_are_refused_with_the_figure(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**6, 10**6 - 10**4, 10**4))
    case = Case(tmp_path, checkpoint)
    with pytest.raises(ConfigurationError, match=r"would take .* GB .* GB are free") as caught:
        case.plugin.pre_llm(case.ctx)
    assert "2 prompts" in caught.value.fix


def test_an_engine_without_the_capability_is_not_measured(tmp_path: Path, checkpoint: Path) -> None:
    case = Case(tmp_path, checkpoint, hooks=False, modules=["model.norm"])
    with pytest.raises(NotMeasuredError, match="hooks"), capturing_engine(case.ctx):
        pass


@pytest.mark.slow
def test_a_prompt_that_the_engine_cannot_run_does_not_cost_the_other(tmp_path: Path, checkpoint: Path) -> None:
    case = Case(tmp_path, checkpoint, modules=["model.norm"])
    answer = case.engine._one

    def failing(request: ReplayRequest) -> ReplayResult:
        if request.request_id.endswith("0"):
            return ReplayResult(request_id=request.request_id, token_ids=[], error="no room")
        return answer(request)

    case.engine._one = failing  # type: ignore[method-assign]
    results = case.run()
    assert results["passed"] is False
    assert results["status"].errors == {"0": "no room"}
    assert results["tensor_results"][0].outcome is Outcome.NOT_MEASURED
    assert results["tensor_results"][1].verdict is Verdict.PASS


def test_another_depth_is_named_with_both_numbers() -> None:
    names = {f"model.layers.{layer}.mlp": "" for layer in range(3)}
    assert layer_problem(names, {"num_hidden_layers": 3}) == ""
    assert layer_problem(names, {"num_hidden_layers": 4}) == "number of layers differs: target 3, reference 4"


def test_nothing_measured_has_no_culprit() -> None:
    result = TensorCompareResult(index=0, outcome=Outcome.NOT_MEASURED, error="x")
    assert culprit_of([result]) is None
    assert summarise([result], 3.0, "cpu").verdict is None
