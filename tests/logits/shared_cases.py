"""Loads the case generators that lie in tests/cases as data, and a generate function that replays stored logits."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

_FOLDER = Path(__file__).parents[1] / "cases" / "verdicts"


def load(name: str) -> ModuleType:
    """A module of tests/cases/verdicts."""
    spec = importlib.util.spec_from_file_location(f"verdict_cases_{name}", _FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


class Replay:
    """A target whose logits are known beforehand: `generate_fn` of prompts `[[p, 7, 7]]`, p the prompt's number.

    Answers with the rows after the tokens that the input already holds, as an engine would that is fed the reference's
    tokens, and notes every call.
    """

    prompt_length = 3

    def __init__(self, target: list[torch.Tensor], sampled: list[torch.Tensor] | None = None) -> None:
        self.target = target
        self.sampled = sampled
        self.calls: list[torch.Tensor] = []

    def inputs(self) -> list[list[list[int]]]:
        """`prompts_input_ids` for all prompts."""
        return [[[p, 7, 7]] * x.shape[1] for p, x in enumerate(self.target)]

    def __call__(self, ids: torch.Tensor) -> Any:
        self.calls.append(ids)
        prompt, done = int(ids[0, 0]), ids.shape[1] - self.prompt_length
        logits = self.target[prompt][done:]
        return logits if self.sampled is None else (logits, self.sampled[prompt][done:])


def per_prompt(x: torch.Tensor) -> list[torch.Tensor]:
    """(prompts, tokens, vocab) to one (tokens, 1, vocab) per prompt."""
    return [p.unsqueeze(1) for p in x]
