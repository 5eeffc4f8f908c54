"""Faults around a right model: what it is given, and what is taken from its logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from accuracy_core.faults.fault import SAMPLER, Fault, Removal, ResolvedFault
from accuracy_core.schemas import Phase


def inject_double_bos(model: nn.Module, fault: ResolvedFault) -> Removal:
    """Every prompt gets further BOS tokens in front: a chat template writes one and the tokenizer adds its own."""
    config: Any = model.config
    extra = int(fault.strength)

    def prepend(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        cache, ids = kwargs.get("past_key_values"), kwargs.get("input_ids")
        if ids is None or (cache is not None and cache.get_seq_length() > 0):
            return args, kwargs
        bos = torch.full((ids.shape[0], extra), int(config.bos_token_id), dtype=ids.dtype, device=ids.device)
        return args, {**kwargs, "input_ids": torch.cat([bos, ids], dim=1)}

    return model.register_forward_pre_hook(prepend, with_kwargs=True).remove


def second_choice(row: torch.Tensor, rank: int) -> int:
    """The token that comes `rank` places after the best one in `row` (vocab,)."""
    return int(row.topk(rank + 1).indices[-1])


def inject_sampler(model: nn.Module, fault: ResolvedFault) -> Removal:
    setattr(model, SAMPLER, lambda row: second_choice(row, int(fault.strength)))
    return lambda: delattr(model, SAMPLER)


DOUBLE_BOS = Fault(
    name="double-bos",
    description="the engine puts a further BOS token in front of every prompt",
    default_layer=None,
    default_strength=1,
    unit="tokens",
    expected_phase=Phase.BOTH,
    expected_module="model.embed_tokens",
    level="config",
    inject_hf=inject_double_bos,
    takes_layer=False,
)
SAMPLER_DEFAULT = Fault(
    name="sampler-default",
    description="the engine does not take the best token although it is asked to; logits are right",
    default_layer=None,
    default_strength=1,
    unit="places after the best token",
    expected_phase=Phase.NONE,
    expected_module="lm_head",
    level="config",
    inject_hf=inject_sampler,
    takes_layer=False,
)
