"""Modules of a Hugging Face checkpoint: the reference, and a target without an engine."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from accuracy_core.capture.hf_taps import HfTaps, available_taps
from accuracy_core.errors import NotMeasuredError
from accuracy_core.goldens.reference_config import load_config
from accuracy_core.modules.executor import ModuleInput
from accuracy_core.modules.kinds import Wiring, layer_input
from accuracy_core.modules.one_layer import load_one_layer

#: changes a loaded model, e.g. injects a fault; returns what takes it out again
Change = Callable[[Any], Callable[[], None]]


class HfModuleExecutor:
    """One decoder layer at a time out of `checkpoint`, in `dtype`; only that layer's weights are read.

    `stepwise`: rows after the prefill go through the KV cache one by one, as a target runs them; else all rows go in
    one causal pass, as references do. `change` is applied to the loaded one-layer model (its layer is number 0).
    """

    name = "transformers"

    def __init__(
        self, checkpoint: str, dtype: torch.dtype, *, stepwise: bool = True, change: Change | None = None
    ) -> None:
        self._checkpoint, self._dtype, self._stepwise, self._change = checkpoint, dtype, stepwise, change
        self._loaded: tuple[int, bool] | None = None
        self._model: Any = None

    def taps(self, layer: int) -> list[str]:
        """Canonical taps of the model with this layer's number."""
        return [_renumbered(tap, 0, layer) for tap in available_taps(self._layer(layer, embeddings=False))]

    @property
    def config(self) -> Any:
        """The checkpoint's configuration."""
        return load_config(self._checkpoint, None, None)

    @torch.inference_mode()
    def feature_sizes(self, wiring: Wiring) -> dict[str, int]:
        """Tap -> number of features of its rows, from a run of one token."""
        model = self._layer(wiring.layer, embeddings=False)
        inner = {_renumbered(tap, wiring.layer, 0): tap for tap in wiring.feed if tap != layer_input(wiring.layer)}
        hidden = model.config.get_text_config().hidden_size
        with HfTaps(model, list(inner)) as taps:
            model(inputs_embeds=torch.zeros(1, 1, hidden, dtype=self._dtype), use_cache=False)
            found = taps.collect()
        return {layer_input(wiring.layer): hidden} | {inner[name]: rows.shape[1] for name, rows in found.items()}

    def weights(self, wiring: Wiring) -> dict[str, torch.Tensor]:
        """Weights of the wiring's module, by name relative to it, in this executor's dtype."""
        model = self._layer(wiring.layer, embeddings=wiring.ids)
        module = "model.embed_tokens" if wiring.ids else _renumbered(wiring.read[0], wiring.layer, 0)
        if wiring.kind == "rope":  # the query and key norms, where there are any
            module = module.rsplit(".", 1)[0]
        return {name: tensor.detach() for name, tensor in model.get_submodule(module).state_dict().items()}

    @torch.inference_mode()
    def run(self, given: ModuleInput) -> dict[str, torch.Tensor]:
        wiring = given.wiring
        model = self._layer(wiring.layer, embeddings=wiring.ids)
        known = set(available_taps(model))
        read = {_renumbered(tap, wiring.layer, 0): tap for tap in wiring.read}
        rows = {tap: given_rows.to(self._dtype) for tap, given_rows in given.rows.items()}
        states = rows.pop(layer_input(wiring.layer), None)
        fed = {_renumbered(tap, wiring.layer, 0): given_rows for tap, given_rows in rows.items()}
        missing = sorted({*read, *fed} - known)
        if missing:
            raise NotMeasuredError(f"{type(model).__name__} has no {', '.join(missing)}")
        with HfTaps(model, list(read), replace=fed) as taps:
            self._forward(model, given, states)
            collected = taps.collect()
        return {tap: collected[name] for name, tap in read.items()}

    def _forward(self, model: Any, given: ModuleInput, states: torch.Tensor | None) -> None:
        """Token ids for the embedding; else the residual stream, of zeros where a tap behind it is fed."""
        count, width = len(given.token_ids), model.config.get_text_config().hidden_size
        if states is None:
            states = torch.zeros(count, width, dtype=self._dtype)
        bounds = [0, given.prefill, *range(given.prefill + 1, count + 1)] if self._stepwise else [0, count]
        cache = None
        for start, end in pairwise(bounds):
            inputs: dict[str, Any] = (
                {"input_ids": torch.tensor([given.token_ids[start:end]])}
                if given.wiring.ids
                else {"inputs_embeds": states[start:end].unsqueeze(0)}
            )
            cache = model(**inputs, past_key_values=cache, use_cache=self._stepwise).past_key_values

    def _layer(self, layer: int, *, embeddings: bool) -> Any:
        if self._loaded != (layer, embeddings):
            self._model = load_one_layer(self._checkpoint, layer, self._dtype, embeddings=embeddings)
            self._loaded = (layer, embeddings)
            if self._change is not None:
                self._change(self._model)
        return self._model

    def __enter__(self) -> HfModuleExecutor:
        return self

    def __exit__(self, *exc: object) -> None:
        self._model = self._loaded = None


def _renumbered(tap: str, was: int, now: int) -> str:
    """`tap` with layer `was` called `now`; other taps unchanged."""
    prefix = f"model.layers.{was}"
    if tap == prefix or tap.startswith(prefix + "."):
        return f"model.layers.{now}{tap[len(prefix) :]}"
    return tap
