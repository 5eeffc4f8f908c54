"""Decode writes K and V into a wrong slot of their block: prefill is right, every later row is not.

The slot of a decoded token at position p in blocks of b tokens is `p - p % b + (p + shift) % b`. Attention then reads
at slot p whatever was there: nothing for the first decoded token, its predecessor's K and V for the next ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from accuracy_core.faults.fault import Fault, Removal, ResolvedFault
from accuracy_core.faults.layers import ATTENTION_NAMES, child, decoder_layer
from accuracy_core.schemas import Phase

#: HF's cache has no blocks; this is the block size that its emulation assumes
HF_BLOCK_SIZE = 16


def shifted_slot(position: int, shift: int, block_size: int) -> int:
    """Slot that the K and V of token `position` are written to, counted in tokens of its sequence."""
    start = position - position % block_size
    return start + (position + shift) % block_size


class ShiftedCache:
    """Stands before an HF cache for one layer's attention; a write of one token goes to the shifted slot.

    A call with more than one token is prefill and passes unchanged.
    """

    def __init__(self, shift: int, block_size: int, first_position: int) -> None:
        self._shift = shift
        self._block_size = block_size
        self._first_position = first_position
        self._cache: Any = None
        self._ahead: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def before(self, cache: Any) -> ShiftedCache:
        """This object, in front of `cache`. A new cache is a new sequence: pending writes are dropped."""
        if cache is not self._cache:
            self._cache, self._ahead = cache, {}
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`keys`, `values` (batch, heads, tokens, head_dim) of the new tokens;

        returns the whole cache's, as attention reads it.
        """
        position = int(self._cache.get_seq_length(layer_idx))
        slot = shifted_slot(position, self._shift, self._block_size)
        if keys.shape[-2] > 1 or position == 0 or position < self._first_position or slot == position:
            return self._cache.update(keys, values, layer_idx, *args, **kwargs)
        nothing = (torch.zeros_like(keys), torch.zeros_like(values))
        stale_keys, stale_values = self._ahead.pop(position, nothing)
        all_keys, all_values = self._cache.update(stale_keys, stale_values, layer_idx, *args, **kwargs)
        if slot > position:
            self._ahead[slot] = (keys, values)
        else:
            all_keys[..., slot : slot + 1, :] = keys
            all_values[..., slot : slot + 1, :] = values
        return all_keys, all_values


def inject_hf(model: nn.Module, fault: ResolvedFault) -> Removal:
    attention = child(decoder_layer(model, fault.layer or 0), ATTENTION_NAMES)
    block_size = int(fault.params.get("block_size", HF_BLOCK_SIZE))
    shifted = ShiftedCache(int(fault.strength), block_size, fault.position)

    def swap(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        cache = kwargs.get("past_key_values")
        return (args, {**kwargs, "past_key_values": shifted.before(cache)}) if cache is not None else (args, kwargs)

    return attention.register_forward_pre_hook(swap, with_kwargs=True).remove


KV_SLOT = Fault(
    name="kv-slot",
    description="decode writes K and V of one layer into the next slot of their block; prefill is right",
    default_layer=1,
    default_strength=1,
    unit="slots",
    expected_phase=Phase.DECODE,
    expected_module="model.layers.{layer}.self_attn.attn",
    level="kv",
    inject_hf=inject_hf,
)
