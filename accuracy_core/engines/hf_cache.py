"""A KV cache of a transformers model that keeps every position, so that K and V can be read and put."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def full_cache(model: Any) -> Any:
    """An empty cache for `model`. Layers of a sliding window keep all positions; the mask still hides the old ones."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    cache = DynamicCache(config=model.config)
    layers = getattr(cache, "layers", [])
    for index, layer in enumerate(layers):
        if type(layer) is DynamicSlidingWindowLayer:
            layers[index] = DynamicLayer()
    return cache


def cached_layers(cache: Any) -> dict[int, tuple[torch.Tensor, torch.Tensor] | str]:
    """Layer -> K and V (kv_heads, positions, head_dim) of a batch of one, or why it has none."""
    found: dict[int, tuple[torch.Tensor, torch.Tensor] | str] = {}
    for number, layer in enumerate(getattr(cache, "layers", [])):
        key, value = getattr(layer, "keys", None), getattr(layer, "values", None)
        if key is None or value is None or key.ndim != 4:
            found[number] = f"{type(layer).__name__} holds no keys and values"
        else:
            found[number] = (key[0], value[0])
    return found
