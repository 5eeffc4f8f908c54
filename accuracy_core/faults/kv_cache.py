"""Faults of the KV cache: writes to wrong slots, a wrong stride, contents of another prompt, a wrong scale."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from accuracy_core.faults.conditions import not_latent
from accuracy_core.faults.fault import Fault, Removal, ResolvedFault
from accuracy_core.faults.layers import decoder_layer, decoder_layers
from accuracy_core.faults.slot_cache import SlotCache, put_before_caches
from accuracy_core.schemas import Phase

#: HF's cache has no blocks; this is the block size that its emulation assumes
HF_BLOCK_SIZE = 16


def block_size_of(fault: ResolvedFault) -> int:
    return int(fault.params.get("block_size", HF_BLOCK_SIZE))


def shifted_slot(position: int, shift: int, block_size: int) -> int:
    """Slot that the K and V of token `position` are written to, counted in tokens of its sequence.

    `position - position % b + (position + shift) % b` in blocks of b tokens: the write stays in its block.
    """
    start = position - position % block_size
    return start + (position + shift) % block_size


def short_stride_slot(position: int, missing: int, block_size: int) -> int:
    """Slot of token `position` when the stride from block to block is `missing` tokens too short.

    The first block is right; every later one begins over the end of the block before it.
    """
    return position // block_size * (block_size - missing) + position % block_size


def _layers(model: nn.Module, fault: ResolvedFault) -> list[nn.Module]:
    return list(decoder_layers(model)) if fault.layer is None else [decoder_layer(model, fault.layer)]


def _each(rule: Any, positions: torch.Tensor, *settings: int) -> torch.Tensor:
    return torch.tensor([rule(int(position), *settings) for position in positions])


def shifting_cache(shift: int, block_size: int, first_position: int = 0) -> SlotCache:
    """A cache whose single-token writes at positions >= `first_position` go to the shifted slot."""

    def slots(positions: torch.Tensor, prefill: bool) -> torch.Tensor:
        if prefill:
            return positions
        return torch.where(positions >= first_position, _each(shifted_slot, positions, shift, block_size), positions)

    return SlotCache(slots=slots)


def inject_slot(model: nn.Module, fault: ResolvedFault) -> Removal:
    """Attention reads at the right slot whatever was there: nothing for the first decoded token, its predecessor's K
    and V for the next ones."""
    return put_before_caches(
        _layers(model, fault), lambda: shifting_cache(int(fault.strength), block_size_of(fault), fault.position)
    )


def inject_stride(model: nn.Module, fault: ResolvedFault) -> Removal:
    def slots(positions: torch.Tensor, prefill: bool) -> torch.Tensor:
        return _each(short_stride_slot, positions, int(fault.strength), block_size_of(fault))

    return put_before_caches(_layers(model, fault), lambda: SlotCache(slots=slots))


def stale(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """`tensor` (…, tokens, head_dim) of a whole prefill with its first `count` tokens replaced: each by its successor,
    as if they had been kept from a prompt that began one token later."""
    count = min(count, tensor.shape[-2] - 1)
    if count < 1:
        return tensor
    changed = tensor.clone()
    changed[..., :count, :] = tensor[..., 1 : count + 1, :]
    return changed


def inject_stale_prefix(model: nn.Module, fault: ResolvedFault) -> Removal:
    count = int(fault.strength)

    def content(tensor: torch.Tensor, positions: torch.Tensor, prefill: bool) -> torch.Tensor:
        return stale(tensor, count) if int(positions[0]) == 0 else tensor

    return put_before_caches(_layers(model, fault), lambda: SlotCache(content=content))


def inject_scale(model: nn.Module, fault: ResolvedFault) -> Removal:
    def content(tensor: torch.Tensor, positions: torch.Tensor, prefill: bool) -> torch.Tensor:
        return tensor * fault.strength

    return put_before_caches(_layers(model, fault), lambda: SlotCache(content=content))


_SHOWS: dict[str, Any] = {
    "expected_module": "model.layers.{layer}.self_attn.attn", "also": ("model.layers.{layer}.self_attn",),
    "level": "kv", "vllm_obstacle": not_latent,
}  # fmt: skip

KV_SLOT = Fault(
    name="kv-slot",
    description="decode writes K and V of one layer into the next slot of their block; prefill is right",
    default_layer=1,
    default_strength=1,
    unit="slots",
    expected_phase=Phase.DECODE,
    inject_hf=inject_slot,
    takes_position=True,
    **_SHOWS,
)
KV_STRIDE = Fault(
    name="kv-block-stride",
    description="the stride between KV blocks of one layer is too short; shows in texts longer than a block",
    default_layer=1,
    default_strength=1,
    unit="slots",
    expected_phase=Phase.BOTH,
    inject_hf=inject_stride,
    **_SHOWS,
)
STALE_PREFIX = Fault(
    name="stale-prefix-cache",
    description="the first KV slots of every layer hold a prompt's that began one token later",
    default_layer=None,
    default_strength=8,
    unit="tokens",
    expected_phase=Phase.BOTH,
    inject_hf=inject_stale_prefix,
    **_SHOWS,
)
KV_SCALE = Fault(
    name="kv-scale",
    description="K and V of one layer are read back from the cache with another scale than they were stored with",
    default_layer=1,
    default_strength=1.1,
    unit="factor",
    expected_phase=Phase.BOTH,
    inject_hf=inject_scale,
    **_SHOWS,
)
