"""Taps around a suspected module: what it is given, and where the same module is in other layers."""

from __future__ import annotations

from collections.abc import Sequence

from accuracy_core.prompts.triage_tree import TriageTree

#: kinds of modules whose output is the logits, or what they are made of at once: replacing it proves nothing
LOGITS = {"head"}


def layer_of(module: str) -> int | None:
    """Layer number in a canonical tap."""
    return next((int(part) for part in module.split(".") if part.isdigit()), None)


def same_in_every_layer(module: str, taps: Sequence[str]) -> list[str]:
    """Taps that differ from `module` in the layer's number only. A layer's own output is none: it holds all before."""
    parts = module.split(".")
    places = [place for place, part in enumerate(parts) if part.isdigit()]
    if not places or places[0] == len(parts) - 1:
        return []
    head, tail = parts[: places[0]], parts[places[0] + 1 :]
    same = [tap for tap in taps if (got := tap.split("."))[: len(head)] == head and got[len(head) + 1 :] == tail]
    return [tap for tap in same if layer_of(tap) is not None]


def control_tap(module: str, taps: Sequence[str], tree: TriageTree) -> str | None:
    """What the module's layer is given: the nearest tap in front of it that everything passes through.

    That is the residual stream behind the layer before, the embedding for the first layer, and the last norm for the
    output head. None when there is none.
    """
    before = list(taps[: taps.index(module)]) if module in taps else list(taps)
    layer, is_head = layer_of(module), tree.kind_of(module) in LOGITS
    for tap in reversed(before):
        kind, own = tree.kind_of(tap), layer_of(tap)
        stream = kind == "residual" and tap.rsplit(".", 1)[-1].isdigit()
        if layer is None:
            fits = stream or (is_head and kind == "norm" and own is None)
        else:
            fits = (stream and own == layer - 1) or (layer == 0 and kind == "embedding")
        if fits:
            return tap
    return None
