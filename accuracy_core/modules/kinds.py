"""Kinds of modules that can be tested alone: what is fed to them, and where their output is read."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from accuracy_core.errors import ConfigurationError

#: stands for the residual stream that enters a layer
LAYER_INPUT = "layer input"


@dataclass(frozen=True)
class ModuleKind:
    """`feed` and `read` are canonical taps relative to a layer (`self_attn.q_proj`; '' is the layer itself).

    The first tap of `feed` that the model has is set to seeded rows, or all of them with `feed_all`; every tap of
    `read` that it has is compared. `ids`: the input is token ids and nothing is fed. `kernel`:
    targets compute it in kernels of their own that may cut digits off, see `rounding`.
    """

    name: str
    what: str
    read: tuple[str, ...]
    feed: tuple[str, ...] = ()
    feed_all: bool = False
    ids: bool = False
    needs: tuple[str, ...] = ()
    kernel: bool = False


_MLP_INPUT = ("pre_feedforward_layernorm", "post_attention_layernorm")
KINDS: dict[str, ModuleKind] = {
    kind.name: kind
    for kind in (
        ModuleKind("embedding", "token embedding", read=("model.embed_tokens",), ids=True),
        ModuleKind("rms_norm", "first norm of the layer", read=("input_layernorm",), feed=(LAYER_INPUT,)),
        ModuleKind(
            "rope",
            "rotary embedding, with the query and key norms where the model has them",
            read=("self_attn.query", "self_attn.key"),
            feed=("self_attn.q_proj", "self_attn.k_proj"),
            feed_all=True,
            kernel=True,
        ),
        ModuleKind("attention", "attention with its projections", read=("self_attn",), feed=("input_layernorm",),
                   kernel=True),
        ModuleKind("mlp", "feed-forward block", read=("mlp",), feed=_MLP_INPUT),
        ModuleKind("router", "router logits of a mixture of experts", read=("mlp.gate", "mlp.router"), feed=_MLP_INPUT,
                   needs=("mlp.experts",)),
        ModuleKind("experts", "mixture of experts, routed", read=("mlp.experts",), feed=_MLP_INPUT,
                   needs=("mlp.experts",), kernel=True),
        ModuleKind("decoder_layer", "whole decoder layer", read=("",), feed=(LAYER_INPUT,)),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Wiring:
    """A kind on one model: full canonical taps of one layer."""

    kind: str
    layer: int
    feed: tuple[str, ...]
    read: tuple[str, ...]
    ids: bool


def wire(kind: str, layer: int, taps: Collection[str]) -> Wiring | None:
    """Taps of `kind` in `layer` of a model that has `taps`; None when the model has no such module.

    Raises ConfigurationError, with near names, for an unknown kind.
    """
    chosen = module_kind(kind)
    if any(_full(tap, layer) not in taps for tap in chosen.needs):
        return None
    read = tuple(full for tap in chosen.read if (full := _full(tap, layer)) in taps)
    feed = tuple(full for tap in chosen.feed if (full := _full(tap, layer)) in taps or tap == LAYER_INPUT)
    if not read or (chosen.feed and not feed) or (chosen.feed_all and len(feed) < len(chosen.feed)):
        return None
    return Wiring(kind, layer, feed if chosen.feed_all else feed[:1], read, chosen.ids)


def module_kind(name: str) -> ModuleKind:
    if name not in KINDS:
        near = difflib.get_close_matches(name, KINDS, n=2)
        raise ConfigurationError(
            f"unknown kind of module {name!r}",
            fix=f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(KINDS)}",
        )
    return KINDS[name]


def module_kinds(names: Sequence[str] | None) -> list[str]:
    """Checked names, or all."""
    return list(KINDS) if names is None else [module_kind(name).name for name in names]


def layer_input(layer: int) -> str:
    """Canonical tap whose rows enter `layer`."""
    return "model.embed_tokens" if layer == 0 else f"model.layers.{layer - 1}"


def _full(tap: str, layer: int) -> str:
    if tap.startswith("model."):
        return tap
    if tap == LAYER_INPUT:
        return layer_input(layer)
    return f"model.layers.{layer}.{tap}" if tap else f"model.layers.{layer}"
