"""A Hugging Face KV cache whose writes go to wrong slots, or with wrong contents: what a paged cache can do wrong.

Hugging Face's cache only ever appends. Here K and V are kept in slots of our own, counted in tokens of the sequence;
attention reads slots 0, 1, …, whatever was written there, and zeros where nothing was. The same is put into the real
cache, so that whoever looks at that sees what attention saw.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from accuracy_core.faults.fault import Removal
from accuracy_core.faults.layers import ATTENTION_NAMES, child, together

#: `(positions int64 (tokens,), prefill)` -> slots int64 (tokens,)
SlotRule = Callable[[torch.Tensor, bool], torch.Tensor]
#: `(tensor (batch, heads, tokens, head_dim), positions, prefill)` -> what is written instead
ContentRule = Callable[[torch.Tensor, torch.Tensor, bool], torch.Tensor]


def same_slots(positions: torch.Tensor, prefill: bool) -> torch.Tensor:
    return positions


def same_content(tensor: torch.Tensor, positions: torch.Tensor, prefill: bool) -> torch.Tensor:
    return tensor


@dataclass
class _Stored:
    keys: torch.Tensor
    values: torch.Tensor


class SlotCache:
    """Stands before an HF cache for one layer's attention. A call with several tokens, or at position 0, is prefill."""

    def __init__(self, slots: SlotRule = same_slots, content: ContentRule = same_content) -> None:
        self._slots, self._content = slots, content
        self._cache: Any = None
        self._stored: _Stored | None = None

    def before(self, cache: Any) -> SlotCache:
        """This object, in front of `cache`. A new cache is a new sequence: nothing of the last one is left."""
        if cache is not self._cache:
            self._cache, self._stored = cache, None
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`keys`, `values` (batch, heads, tokens, head_dim) of the new tokens;

        returns what attention reads: the whole cache, or in a layer with a window its end.
        """
        start, count = int(self._cache.get_seq_length(layer_idx)), keys.shape[-2]
        positions = torch.arange(start, start + count)
        prefill = count > 1 or start == 0
        slots = self._slots(positions, prefill)
        total = start + count
        stored = self._grown(keys, values, max(total, int(slots.max()) + 1))
        stored.keys[..., slots, :] = self._content(keys, positions, prefill)
        stored.values[..., slots, :] = self._content(values, positions, prefill)
        read = self._cache.update(keys, values, layer_idx, *args, **kwargs)[0].shape[-2]
        layer = self._cache.layers[layer_idx]
        held = layer.keys.shape[-2]
        layer.keys = stored.keys[..., total - held : total, :].clone()
        layer.values = stored.values[..., total - held : total, :].clone()
        return stored.keys[..., total - read : total, :], stored.values[..., total - read : total, :]

    def _grown(self, keys: torch.Tensor, values: torch.Tensor, size: int) -> _Stored:
        old = self._stored or _Stored(keys[..., :0, :], values[..., :0, :])
        more = max(size - old.keys.shape[-2], 0)
        self._stored = _Stored(_padded(old.keys, more), _padded(old.values, more))
        return self._stored


def _padded(tensor: torch.Tensor, more: int) -> torch.Tensor:
    return torch.cat([tensor, tensor.new_zeros(*tensor.shape[:-2], more, tensor.shape[-1])], dim=-2)


def put_before_caches(layers: list[nn.Module], make: Callable[[], SlotCache]) -> Removal:
    """A cache from `make` in front of the KV cache of every decoder layer in `layers`."""

    def in_one(layer: nn.Module) -> Removal:
        wrong = make()

        def swap(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            cache = kwargs.get("past_key_values")
            return (args, {**kwargs, "past_key_values": wrong.before(cache)}) if cache is not None else (args, kwargs)

        return child(layer, ATTENTION_NAMES).register_forward_pre_hook(swap, with_kwargs=True).remove

    return together(in_one(layer) for layer in layers)
