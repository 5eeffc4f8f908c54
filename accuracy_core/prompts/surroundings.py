"""Taps around a suspected module: what it is given, where the same module is in other layers, what is like it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

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


def comparable_taps(
    modules: Sequence[str],
    taps: Sequence[str],
    tree: TriageTree,
    *,
    but: Collection[str] = (),
    possible: Callable[[str], bool] = lambda tap: True,
) -> list[str]:
    """For each of `modules` the nearest module in front of it that is none of them and not in `but`.

    It is looked for in the module's own layer and in the one before. The residual stream is none: everything that went
    wrong before passes through it. Modules without one, and those outside of the layers, add nothing.
    """
    found: dict[str, None] = {}
    for module in modules:
        near = (tap for tap in in_front(module, taps, tree) if tap not in {*modules, *but} and possible(tap))
        first = next(near, None)
        if first is not None:
            found[first] = None
    return list(found)


def in_front(module: str, taps: Sequence[str], tree: TriageTree) -> list[str]:
    """Taps in front of the module, in its layer and the one before, nearest first; without the residual stream."""
    layer = layer_of(module)
    if layer is None or module not in taps:
        return []
    before = reversed(taps[: taps.index(module)])
    return [tap for tap in before if layer_of(tap) in (layer, layer - 1) and tree.kind_of(tap) != "residual"]
