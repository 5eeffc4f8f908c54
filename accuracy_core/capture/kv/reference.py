"""K and V of a reference, taken from the cache of the very pass that gives its logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from accuracy_core.capture.taps import kv_tensor_name


class KvCapture:
    """Hands out `kv.<layer>.key` and `kv.<layer>.value`, (kv_heads, positions, head_dim) each, as a golden's capture.

    Every position is kept, also in layers with a sliding window. Layers without K and V of their own (linear attention,
    layers that share another's cache) are left out.
    """

    use_cache = True

    def identity(self) -> Mapping[str, Any]:
        return {"kv": 1}

    @contextmanager
    def recording(self, model: Any) -> Iterator[Callable[[Any], Mapping[str, Sequence[torch.Tensor]]]]:
        def full_cache(_module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            if kwargs.get("past_key_values") is not None:
                return args, kwargs
            return args, {**kwargs, "past_key_values": recording_cache(model.config)}

        handle = model.register_forward_pre_hook(full_cache, with_kwargs=True)
        try:
            yield lambda output: cached_kv(output.past_key_values)
        finally:
            handle.remove()


def recording_cache(config: Any) -> Any:
    """An empty transformers cache whose sliding-window layers forget nothing."""
    from transformers import DynamicCache

    cache = DynamicCache(config=config)
    layers: list[Any] = cache.layers
    for layer in layers:
        if getattr(layer, "is_sliding", False):
            layer.activate_past_recording()
    return cache


def cached_kv(cache: Any) -> dict[str, list[torch.Tensor]]:
    """K and V in a transformers cache of one sequence, copied, under the names of `capture.taps`."""
    found: dict[str, list[torch.Tensor]] = {}
    for number, layer in enumerate(cache.layers):
        for which, name in (("key", "keys"), ("value", "values")):
            tensor = getattr(layer, name, None)
            if isinstance(tensor, torch.Tensor) and tensor.ndim == 4:
                found[kv_tensor_name(number, which)] = [tensor[0].detach().clone()]
    return found
