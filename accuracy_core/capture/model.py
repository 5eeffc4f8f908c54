"""A transformers model that captures while it runs (`TensorCaptureModel`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from accuracy_core.capture.hf_taps import HfTaps, available_taps
from accuracy_core.capture.patterns import select_taps


class TensorCaptureModel:
    """Wraps a transformers model; `capture` runs it teacher-forced and returns the tensors at `modules`.

    `modules` are patterns (`model.layers.0-31`, exact names, regular expressions); none: every tap. Raises
    ConfigurationError for a pattern that matches nothing, with near names.
    """

    def __init__(self, model: Any, modules: Sequence[str] = ()) -> None:
        self.model = model
        self.taps = select_taps(modules, available_taps(model))

    @torch.inference_mode()
    def capture(
        self, prompt: Sequence[int], forced: Sequence[int], *, stepwise: bool = True
    ) -> dict[str, torch.Tensor]:
        """Canonical tap -> (positions, features) over prompt and forced tokens without the last, in the order of
        execution. `stepwise`: one prefill and one decode step per token, with a KV cache; else one forward."""
        ids = torch.tensor([[*prompt, *forced[:-1]]])
        with HfTaps(self.model, self.taps) as taps:
            if not stepwise:
                self.model(input_ids=ids, use_cache=False)
                return taps.collect()
            cache = self.model(input_ids=ids[:, : len(prompt)], use_cache=True).past_key_values
            for position in range(len(prompt), ids.shape[1]):
                step = ids[:, position : position + 1]
                cache = self.model(input_ids=step, past_key_values=cache, use_cache=True).past_key_values
            return taps.collect()
