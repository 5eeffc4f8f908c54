from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from accuracy_core.models.architectures import architecture_config, initialise

PROMPT = [5, 77, 130, 9, 9, 201, 44, 18, 3, 250]
FORCED = [12, 13, 60, 61, 7]
IDS = [*PROMPT, *FORCED[:-1]]
SMALL = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "num_hidden_layers": 2, "vocab_size": 264}

MakeModel = Callable[..., Any]


def small_model(name: str, dtype: torch.dtype = torch.float32, **overrides: Any) -> Any:
    """A seeded two-layer model; every dtype holds the same bfloat16 weights."""
    from transformers import AutoModelForCausalLM

    settings = {**SMALL, **overrides}
    if name in ("qwen2", "deepseek-v2"):
        settings.pop("head_dim")
    config = architecture_config(name, **settings)
    if name == "gemma2":
        config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config)
    initialise(model, seed=0)
    for parameter in model.parameters():  # not the buffers: rotary frequencies stay in float32
        parameter.data = parameter.data.to(torch.bfloat16).to(dtype)
    return model.eval()


@pytest.fixture(scope="session")
def llama() -> Any:
    """FP32 Llama, two layers, four heads of 16, two KV heads."""
    torch.set_num_threads(1)
    return small_model("llama")


@pytest.fixture(scope="session")
def llama_bf16() -> Any:
    torch.set_num_threads(1)
    return small_model("llama", torch.bfloat16)


@pytest.fixture(scope="session")
def vllm_modules() -> dict[str, Any]:
    """Architecture -> `config` and `modules` (name -> class), recorded from vLLM 0.32 on the CPU; two layers."""
    path = Path(__file__).parent / "data" / "vllm_0_32_modules.json"
    recorded: dict[str, Any] = json.loads(path.read_text())
    return recorded
