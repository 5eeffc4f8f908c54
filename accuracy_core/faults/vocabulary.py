"""Faults of the embedding and the head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from accuracy_core.faults.conditions import caps_logits, is_scaled_embedding, is_tied
from accuracy_core.faults.fault import Fault, Removal, ResolvedFault
from accuracy_core.faults.layers import replace_forward, restore
from accuracy_core.schemas import Phase

#: first of the two tokens whose rows are swapped: an id that every vocabulary has and that is no special token
FIRST_SWAPPED = 10


def _change_head(model: Any, change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Removal:
    """Let the head return `change(hidden, logits)`; hidden (…, width), logits (…, vocab)."""
    head = model.get_output_embeddings()
    return replace_forward(head, lambda right: lambda hidden: change(hidden, right(hidden)))


def swap_rows(logits: torch.Tensor, first: int, pairs: int) -> torch.Tensor:
    """Columns first, first + 1, … of `logits` (…, vocab) swapped pair by pair."""
    order = torch.arange(logits.shape[-1])
    for token in range(first, first + 2 * pairs, 2):
        order[token], order[token + 1] = token + 1, token
    return logits[..., order]


def inject_swapped_rows(model: nn.Module, fault: ResolvedFault) -> Removal:
    first = int(fault.params.get("first", FIRST_SWAPPED))
    return _change_head(model, lambda hidden, logits: swap_rows(logits, first, int(fault.strength)))


def random_head(vocabulary: int, width: int) -> torch.Tensor:
    """A head as it is before any checkpoint is loaded: random rows of unit length. float32 (vocabulary, width)."""
    return torch.randn(vocabulary, width, generator=torch.Generator().manual_seed(0)) * width**-0.5


def inject_untied(model: nn.Module, fault: ResolvedFault) -> Removal:
    head = random_head(*model.get_output_embeddings().weight.shape)  # type: ignore[operator, misc]

    def change(hidden: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(hidden, head.to(hidden.dtype))

    return _change_head(model, change)


def inject_padding(model: nn.Module, fault: ResolvedFault) -> Removal:
    def change(hidden: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        changed = logits.clone()
        changed[..., -1] = logits.max(-1).values + fault.strength
        return changed

    return _change_head(model, change)


def inject_no_cap(model: nn.Module, fault: ResolvedFault) -> Removal:
    config: Any = model.config
    before = config.final_logit_softcapping
    config.final_logit_softcapping = None

    def remove() -> None:
        config.final_logit_softcapping = before

    return remove


def inject_no_scale(model: nn.Module, fault: ResolvedFault) -> Removal:
    scale: Any = model.get_input_embeddings().embed_scale  # type: ignore[operator]
    before = scale.clone()
    scale.fill_(1.0)
    return lambda: restore(scale, before)


_HEAD: dict[str, Any] = {
    "default_layer": None, "expected_phase": Phase.BOTH, "expected_module": "lm_head", "level": "logits",
    "takes_layer": False,
}  # fmt: skip

HEAD_ROWS = Fault(
    name="head-rows-swapped",
    description="rows of the head are swapped: two tokens have each other's logits",
    default_strength=8,
    unit="pairs of tokens",
    inject_hf=inject_swapped_rows,
    **_HEAD,
)
TIED_EMBEDDING = Fault(
    name="tied-embedding-ignored",
    description="the head that shares the embedding's matrix is left at its random start",
    default_strength=1,
    unit="on or off",
    inject_hf=inject_untied,
    obstacle=is_tied,
    **_HEAD,
)
PADDED_VOCABULARY = Fault(
    name="padded-vocabulary-wins",
    description="the last column of the logits, which no token of a padded vocabulary has, beats all others",
    default_strength=1.0,
    unit="logits above the largest",
    inject_hf=inject_padding,
    **_HEAD,
)
LOGIT_SOFTCAP = Fault(
    name="logit-softcap-missing",
    description="the soft cap of the logits is left out",
    default_strength=1,
    unit="on or off",
    inject_hf=inject_no_cap,
    obstacle=caps_logits,
    **_HEAD,
)
EMBEDDING_SCALE = Fault(
    name="embedding-scale-missing",
    description="embeddings are not scaled by the square root of the width",
    default_layer=None,
    default_strength=1,
    unit="on or off",
    expected_phase=Phase.BOTH,
    expected_module="model.embed_tokens",
    also=("model.layers.0.residual_mid", "model.layers.0.input_layernorm"),
    level="tensors",
    inject_hf=inject_no_scale,
    obstacle=is_scaled_embedding,
    takes_layer=False,
)
