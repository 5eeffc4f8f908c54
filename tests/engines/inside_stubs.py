"""Stand-ins for the parts of vLLM that `assay_inside` imports, so that its logic is tested without vLLM."""

from __future__ import annotations

import enum
import sys
import types
from pathlib import Path
from typing import Any

import pytest

INSIDE = Path(__file__).parents[2] / "accuracy_core" / "engines" / "inside"


class MoveDirectionality(enum.Enum):
    UNIDIRECTIONAL = 1
    SWAP = 2


class V1Processor:
    pass


class V2Processor:
    pass


class SamplingParams:
    """Takes what vLLM 0.32 takes, of what is used here."""

    def __init__(
        self,
        temperature: float = 1.0,
        max_tokens: int = 16,
        ignore_eos: bool = False,
        detokenize: bool = True,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        flat_logprobs: bool = False,
        extra_args: dict[str, Any] | None = None,
        trace_decode_token_ids: list[int] | None = None,
        skip_reading_prefix_cache: bool | None = None,
    ) -> None:
        self.__dict__.update({key: value for key, value in locals().items() if key != "self"})


def install(patch: pytest.MonkeyPatch, *, second_runner: bool = True) -> None:
    """Put the stand-ins and `assay_inside` on the import path for one test."""
    for name in [name for name in sys.modules if name.split(".")[0] in ("assay_inside", "vllm")]:
        patch.delitem(sys.modules, name)
    modules = {
        "vllm": {"SamplingParams": SamplingParams},
        "vllm.v1": {},
        "vllm.v1.sample": {},
        "vllm.v1.sample.logits_processor": {"LogitsProcessor": V1Processor, "MoveDirectionality": MoveDirectionality},
    }
    if second_runner:
        modules |= {
            "vllm.v1.worker": {},
            "vllm.v1.worker.gpu": {},
            "vllm.v1.worker.gpu.sample": {},
            "vllm.v1.worker.gpu.sample.logits_processor": {"LogitsProcessor": V2Processor},
        }
    for name, contents in modules.items():
        module = types.ModuleType(name)
        module.__dict__.update(contents)
        module.__path__ = []
        patch.setitem(sys.modules, name, module)
    patch.syspath_prepend(str(INSIDE))
