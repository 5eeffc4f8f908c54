"""Every fault in a loaded vLLM does what it does in Hugging Face, in FP32, and is taken out without a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from accuracy_core.engines.offline import OfflineVllmEngine
from accuracy_core.engines.transformers_engine import TransformersEngine
from accuracy_core.errors import ConfigurationError
from accuracy_core.faults import FAULTS
from accuracy_core.models.architectures import architecture_checkpoint
from accuracy_core.prompts.engine_checks import greedy_findings
from accuracy_core.schemas import EngineSpec, FaultSpec, ReplayRequest
from accuracy_core.selftest.plan import config_of

pytestmark = pytest.mark.slow

#: between them they have every fault that sits in the model
ARCHITECTURES = ["gemma2", "gpt-oss", "qwen3-moe"]
PROMPT = [0, *((7 * i * i + 11 * i) % 251 + 4 for i in range(44))]
FORCED = [224, 26, 14, 28, 90]
#: what a slot holds that was never written, and how scaling and base of the rotary embedding combine: the engine's own
ENGINES_DIFFER = ("kv-slot", "kv-block-stride", "rope-theta")
#: fault -> setting with which the engines differ: a shift of all queries, which is how the kernel is made to hide keys,
#: moves a sliding window along; Hugging Face caps the column that wins, vLLM adds it to capped logits
DIFFER_WITH = {"causal-mask-shift": "sliding_window", "padded-vocabulary-wins": "final_logit_softcapping"}


def rows(engine: Any, name: str) -> torch.Tensor:
    request = ReplayRequest(request_id=name, prompt_token_ids=PROMPT, forced_token_ids=FORCED)
    (result,) = engine.replay([request])
    assert result.error is None
    assert result.token_ids == FORCED
    return load_file(result.tensors)["logits"]


def relative(rows: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    return (rows - to).norm(dim=-1) / to.norm(dim=-1)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("architectures")
    return lambda name: architecture_checkpoint(name, cache_dir=folder)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_fault(architecture: str, checkpoints: Any, engine_python: Path, tmp_path: Path) -> None:
    common = {"model": str(checkpoints(architecture)), "dtype": "float32", "max_model_len": 96}
    vllm_spec = EngineSpec(**common, python=str(engine_python), engine_args={"block_size": 32})
    hf_spec = EngineSpec(**common, engine="transformers")
    config = config_of(architecture)
    with (
        OfflineVllmEngine(vllm_spec, scratch=tmp_path / "vllm") as vllm,
        TransformersEngine(hf_spec, scratch=tmp_path / "hf") as hf,
    ):
        clean = rows(vllm, "clean")
        assert relative(clean, rows(hf, "clean")).max() < 1e-5
        for name, fault in FAULTS.items():
            if fault.why_not(config, "vllm") or fault.level == "config" or fault.judged_by != "triage":
                continue
            params = {"block_size": 32} if name in ("kv-slot", "kv-block-stride") else {}
            chosen = FaultSpec(name=name, params=params)
            vllm.set_fault(chosen)
            hf.set_fault(chosen)
            faulty, expected = rows(vllm, name), rows(hf, name)
            if name == "nan-module":
                assert torch.isnan(faulty).all()
            else:
                assert relative(faulty, clean)[1:].min() > 1e-4, f"{name} changes nothing"
            same = name not in ENGINES_DIFFER and not config.get(DIFFER_WITH.get(name, ""))
            if same and name not in ("nan-module", "truncation", "norm-no-upcast"):  # those amplify the last bit
                assert relative(faulty, expected).max() < 1e-4, f"{name} is another fault in Hugging Face"
            vllm.set_fault(None)
            assert torch.equal(rows(vllm, "again"), clean), f"{name} is still there"
            hf.set_fault(None)
        check_the_sampler(vllm)
        with pytest.raises(ConfigurationError, match="does not apply"):
            vllm.set_fault(FaultSpec(name="gate-up-swapped" if config.get("num_local_experts") else "router-order"))


def check_the_sampler(engine: OfflineVllmEngine) -> None:
    assert greedy_findings(engine, PROMPT) == []
    engine.set_fault(FaultSpec(name="sampler-default"))
    assert greedy_findings(engine, PROMPT)
    engine.set_fault(FaultSpec(name="double-bos"))
    request = ReplayRequest(request_id="double", prompt_token_ids=PROMPT, forced_token_ids=FORCED)
    assert engine.replay([request])[0].seen_prompt_ids == [0, *PROMPT]
    engine.set_fault(None)
