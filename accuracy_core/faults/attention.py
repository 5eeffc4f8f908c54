"""Faults of attention: scale, masks, mapping of query heads to KV heads, soft cap."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from accuracy_core.faults.attention_function import WrongAttention, allowed_keys, as_mask, wrap_attention
from accuracy_core.faults.conditions import caps_attention, has_grouped_heads, not_latent, sliding_layers
from accuracy_core.faults.fault import Fault, Removal, ResolvedFault
from accuracy_core.schemas import Phase


def _inject(model: nn.Module, fault: ResolvedFault, wrong: WrongAttention) -> Removal:
    return wrap_attention(model, None if fault.layer is None else {fault.layer}, wrong)


def inject_scale(model: nn.Module, fault: ResolvedFault) -> Removal:
    def wrong(right: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, kwargs: dict[str, Any]) -> Any:
        return right(module, query, key, value, mask, **{**kwargs, "scaling": kwargs["scaling"] * fault.strength})

    return _inject(model, fault, wrong)


def without_newest(allowed: torch.Tensor, count: int) -> torch.Tensor:
    """`allowed` (…, queries, keys) with the `count` newest keys of every query taken away, the last query being the
    last key. A query that would see nothing keeps itself."""
    queries, keys = allowed.shape[-2:]
    own = torch.arange(keys - queries, keys).unsqueeze(1)
    distance = own - torch.arange(keys)
    less = allowed & (distance >= count)
    itself = distance == 0
    return torch.where(less.any(-1, keepdim=True), less, itself)


def without_oldest(allowed: torch.Tensor, window: int, count: int) -> torch.Tensor:
    """`allowed` (…, queries, keys) for a window that is `count` tokens too short."""
    queries, keys = allowed.shape[-2:]
    own = torch.arange(keys - queries, keys).unsqueeze(1)
    return allowed & (own - torch.arange(keys) < max(window - count, 1))


def inject_causal(model: nn.Module, fault: ResolvedFault) -> Removal:
    def wrong(right: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, kwargs: dict[str, Any]) -> Any:
        allowed = without_newest(allowed_keys(mask, query.shape[-2], key.shape[-2]), int(fault.strength))
        return right(module, query, key, value, as_mask(allowed, mask, query.dtype), **kwargs)

    return _inject(model, fault, wrong)


def inject_window(model: nn.Module, fault: ResolvedFault) -> Removal:
    config: Any = model.config
    layers = set(sliding_layers(config.to_dict())) if fault.layer is None else {fault.layer}

    def wrong(right: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, kwargs: dict[str, Any]) -> Any:
        allowed = allowed_keys(mask, query.shape[-2], key.shape[-2])
        allowed = without_oldest(allowed, int(module.config.sliding_window), int(fault.strength))
        return right(module, query, key, value, as_mask(allowed, mask, query.dtype), **kwargs)

    return wrap_attention(model, layers, wrong)


def wrong_order(queries: int, keys: int) -> list[int]:
    """Query heads in the order in which the right kernel gives head p the KV head that a wrong one gives it.

    Right: query head h reads KV head h // (queries / keys). Wrong: h % keys.
    """
    return sorted(range(queries), key=lambda head: (head % keys, head))


def inject_gqa(model: nn.Module, fault: ResolvedFault) -> Removal:
    """The right function over permuted query heads, and its output permuted back."""

    def wrong(right: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, kwargs: dict[str, Any]) -> Any:
        order = torch.tensor(wrong_order(query.shape[1], key.shape[1]))
        if kwargs.get("s_aux") is not None:
            sinks = module.sinks.data
            module.sinks.data = sinks[order]
            kwargs = {**kwargs, "s_aux": module.sinks}
        try:
            output, weights = right(module, query[:, order], key, value, mask, **kwargs)
        finally:
            if kwargs.get("s_aux") is not None:
                module.sinks.data = sinks
        return output[:, :, order.argsort()], weights

    return _inject(model, fault, wrong)


def inject_no_cap(model: nn.Module, fault: ResolvedFault) -> Removal:
    def wrong(right: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, kwargs: dict[str, Any]) -> Any:
        return right(module, query, key, value, mask, **{**kwargs, "softcap": None})

    return _inject(model, fault, wrong)


_SHOWS: dict[str, Any] = {
    "expected_phase": Phase.BOTH, "expected_module": "model.layers.{layer}.self_attn.attn", "level": "tensors",
    "also": ("model.layers.{layer}.self_attn",), "vllm_obstacle": not_latent,
}  # fmt: skip

ATTENTION_SCALE = Fault(
    name="attention-scale",
    description="one layer's attention scores are scaled",
    default_layer=1,
    default_strength=1.1,
    unit="factor",
    inject_hf=inject_scale,
    **_SHOWS,
)
CAUSAL_MASK = Fault(
    name="causal-mask-shift",
    description="the causal mask of one layer hides the newest tokens, the query's own included",
    default_layer=1,
    default_strength=1,
    unit="tokens",
    inject_hf=inject_causal,
    **_SHOWS,
)
SLIDING_WINDOW = Fault(
    name="sliding-window-shift",
    description="the sliding window is too short; shows in texts longer than the window",
    default_layer=None,
    default_strength=1,
    unit="tokens",
    inject_hf=inject_window,
    layers=sliding_layers,
    **_SHOWS,
)
GQA_MAPPING = Fault(
    name="gqa-mapping",
    description="query heads of one layer read the wrong KV heads: interleaved instead of grouped",
    default_layer=1,
    default_strength=1,
    unit="on or off",
    inject_hf=inject_gqa,
    obstacle=has_grouped_heads,
    **_SHOWS,
)
ATTENTION_SOFTCAP = Fault(
    name="attention-softcap-missing",
    description="the soft cap of one layer's attention scores is left out",
    default_layer=1,
    default_strength=1,
    unit="on or off",
    inject_hf=inject_no_cap,
    obstacle=caps_attention,
    **_SHOWS,
)
