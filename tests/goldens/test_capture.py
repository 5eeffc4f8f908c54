"""Captures come from the very pass that gave the logits, are stored with them and are part of the key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from accuracy_core.goldens import get_cached_reference_goldens
from accuracy_core.models import embedded_model

PROMPTS = [[1, 20, 30], [1, 40, 50, 60]]


class HeadInputs:
    """Inputs of the language model head, and the keys of the first layer."""

    def __init__(self, name: str = "hidden", use_cache: bool = True) -> None:
        self.name, self.use_cache = name, use_cache

    def identity(self) -> Mapping[str, Any]:
        return {"what": self.name}

    @contextmanager
    def recording(self, model: Any) -> Iterator[Callable[[Any], Mapping[str, list[torch.Tensor]]]]:
        seen: list[torch.Tensor] = []
        handle = model.lm_head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][0].clone()))

        def collect(output: Any) -> Mapping[str, list[torch.Tensor]]:
            keys = output.past_key_values.layers[0].keys[0].clone()
            return {self.name: seen[-1:], "keys": [keys]}

        try:
            yield collect
        finally:
            handle.remove()


def get(cache: Path, **change: Any) -> Any:
    return get_cached_reference_goldens(
        "tiny", embedded_model(), prompts=PROMPTS, output_length=4, cache_dir=cache, **change
    )


@pytest.mark.parametrize("forced", [None, [[5, 6, 7, 8]] * 2], ids=["greedy", "forced"])
def test_captured_tensors_belong_to_the_logits(forced: Any, cache: Path) -> None:
    plain = get(cache, forced_token_ids=forced)
    golden = get(cache, capture=HeadInputs(), forced_token_ids=forced)
    assert set(golden) - set(plain) == {"fp32.hidden", "fp32.keys", "dtype.hidden", "dtype.keys"}
    head = torch.nn.functional.linear
    from accuracy_core.goldens import load_reference_model

    weight = load_reference_model(str(embedded_model()), torch.float32).lm_head.weight.detach()
    for index, prompt in enumerate(PROMPTS):
        assert torch.equal(golden["fp32_logits"][index], plain["fp32_logits"][index])
        (hidden,) = golden["fp32.hidden"][index]
        logits = golden["fp32_logits"][index][:, 0]
        assert (head(hidden, weight) - logits).abs().max() <= 1e-5 * logits.abs().max()
        (narrow,) = golden["dtype.hidden"][index]
        assert narrow.dtype is torch.bfloat16
        assert golden["fp32.keys"][index][0].shape[1] == len(prompt) + 3  # the last token is predicted, not read
    assert get(cache, capture=HeadInputs(), forced_token_ids=forced).source == "disk"


def test_captures_are_in_the_key(cache: Path) -> None:
    assert len({get(cache, capture=capture).key for capture in (None, HeadInputs(), HeadInputs("other"))}) == 3
