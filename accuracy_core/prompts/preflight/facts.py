"""What the checks look at. Everything is plain data: who gathers it does not matter to a check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accuracy_core.schemas import EngineSpec


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of the checkpoint, from the header of its file; `dtype` as safetensors writes it, e.g. BF16."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class SeenRequest:
    """A request as it was meant, and as the server saw it. None: not known.

    `answer_fits`: whether the answer that the task expects is shorter than the request's token limit.
    """

    text: str | None = None
    messages: list[dict[str, Any]] | None = None
    token_ids: list[int] | None = None
    output_token_ids: list[int] | None = None
    finish_reason: str | None = None
    task: str = ""
    answer_fits: bool | None = None


@dataclass(frozen=True)
class FilterFacts:
    """What one filter of one task made of the responses.

    `matches_examples`: whether its pattern finds an answer in the task's own few-shot examples or expected answers,
    which no engine had a hand in; None without a pattern.
    """

    task: str
    filter: str
    samples: int
    unmatched: int
    right: int = 0
    matches_examples: bool | None = None


@dataclass(frozen=True)
class LoadReport:
    """What loading the checkpoint into a model said, on one side (`reference`, `target`); `error`: it did not load."""

    side: str
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mismatched: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class ServerFacts:
    """What a running server says about itself. None: it did not say.

    `greedy_agrees`: of requests that leave every sampling setting open, the share whose tokens are those of greedy
    decoding.
    """

    base_url: str
    model: str | None = None
    max_model_len: int | None = None
    kind: str | None = None
    greedy_agrees: float | None = None
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PreflightFacts:
    """Everything at hand. A check that lacks what it needs says "not measured", never "fine".

    `chat`: the evaluation sends conversations.
    """

    spec: EngineSpec
    folder: Path | None = None
    chat: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, TensorInfo] = field(default_factory=dict)
    tokenizer: Any = None
    tokenizer_problem: str = ""
    target_tokenizer: Any = None
    seen: tuple[SeenRequest, ...] = ()
    filters: tuple[FilterFacts, ...] = ()
    loads: tuple[LoadReport, ...] = ()
    server: ServerFacts | None = None
