"""Standing in front of the attention function of a Hugging Face model, through transformers' attention interface."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from accuracy_core.faults.fault import Removal

#: `wrong(right, module, query, key, value, mask, kwargs)` -> what the attention function returns; query, key, value
#: (batch, heads, tokens, head_dim)
WrongAttention = Callable[..., Any]
_numbers = itertools.count()


def wrap_attention(model: nn.Module, layers: set[int] | None, wrong: WrongAttention) -> Removal:
    """Let `wrong` compute attention in `layers` (None: all).

    The model's configuration names its attention function; a new name is registered for the wrapped one, with the same
    mask. Models that share a configuration object would share the fault: every loaded model has its own.
    """
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    config: Any = model.config
    before = config._attn_implementation
    name = f"assay_fault_{next(_numbers)}"

    def attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **kwargs: Any) -> Any:
        right = ALL_ATTENTION_FUNCTIONS.get_interface(before, eager_function(module))
        if layers is not None and module.layer_idx not in layers:
            return right(module, query, key, value, attention_mask, **kwargs)
        return wrong(right, module, query, key, value, attention_mask, kwargs)

    ALL_ATTENTION_FUNCTIONS.register(name, attention)
    if before in ALL_MASK_ATTENTION_FUNCTIONS.valid_keys():
        ALL_MASK_ATTENTION_FUNCTIONS.register(name, ALL_MASK_ATTENTION_FUNCTIONS[before])
    config._attn_implementation = name

    def remove() -> None:
        config._attn_implementation = before

    return remove


def eager_function(module: nn.Module) -> Callable[..., Any]:
    """The eager attention that a modelling file keeps beside its attention class."""
    import sys

    return getattr(sys.modules[type(module).__module__], "eager_attention_forward")  # noqa: B009


def allowed_keys(mask: torch.Tensor | None, queries: int, keys: int) -> torch.Tensor:
    """Which key each query may see, bool (batch or 1, 1, queries, keys), from any of the forms a mask has.

    None: causal, the last query being the last key.
    """
    if mask is None:
        rows = torch.arange(keys - queries, keys).unsqueeze(1)
        return (torch.arange(keys) <= rows)[None, None]
    mask = mask[..., :keys]
    return mask if mask.dtype is torch.bool else mask > torch.finfo(mask.dtype).min / 2


def as_mask(allowed: torch.Tensor, like: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """`allowed` in the form of the mask `like`: boolean, or additive in `dtype`."""
    if like is None or like.dtype is torch.bool:
        return allowed
    return torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)
