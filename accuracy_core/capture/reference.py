"""Tapped tensors of a reference, taken from the pass that gives its logits, and what a reference model has to tap."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from accuracy_core.capture.heads import heads_of
from accuracy_core.capture.hf_points import Point, find_points
from accuracy_core.capture.hf_taps import HfTaps
from accuracy_core.capture.taps import TAP_PREFIX


class ReferenceCapture:
    """Hands out `tap.<canonical tap>`, one tensor (positions, features) each, as a golden's capture.

    `lm_head` holds the last positions, those that predict the forced tokens.
    """

    use_cache = False

    def __init__(self, taps: Sequence[str]) -> None:
        self.taps = tuple(taps)

    def identity(self) -> Mapping[str, Any]:
        return {"taps": 1, "names": sorted(self.taps)}

    @contextmanager
    def recording(self, model: Any) -> Iterator[Callable[[Any], Mapping[str, Sequence[torch.Tensor]]]]:
        with HfTaps(model, self.taps) as taps:
            yield lambda _output: {TAP_PREFIX + tap: [rows] for tap, rows in taps.collect().items()}


@dataclass(frozen=True)
class ReferenceTaps:
    """What a model can be tapped for: `features` maps each canonical tap to its width."""

    features: Mapping[str, int]

    @property
    def available(self) -> list[str]:
        return list(self.features)

    def values(self, taps: Sequence[str], positions: int, tokens: int) -> int:
        """Numbers that a capture of one prompt holds; `lm_head` has a row per token, the others one per position."""
        return sum(self.features[tap] * (tokens if tap == "lm_head" else positions) for tap in taps)


def reference_taps(config: Any, *, trust_remote_code: bool = False) -> ReferenceTaps:
    """Taps of the model that `config` (a transformers configuration) describes; no weights are made or read."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    text_config = config.get_text_config().to_dict()
    return ReferenceTaps({tap: _width(point, text_config) for tap, point in find_points(model).items()})


def _width(point: Point, config: Mapping[str, Any]) -> int:
    hidden = int(config.get("hidden_size") or config.get("n_embd") or 1)
    if point.kind == "logits":
        return int(config.get("vocab_size") or hidden)
    if point.kind == "output" and isinstance(point.module, nn.Linear):
        return point.module.out_features
    if point.kind == "input":
        return int(getattr(point.module, "in_features", hidden))
    heads = heads_of(point.tap, config)
    all_heads = int(config.get("num_attention_heads") or config.get("n_head") or 1)
    return heads * int(config.get("head_dim") or hidden // all_heads) if heads > 1 else hidden
