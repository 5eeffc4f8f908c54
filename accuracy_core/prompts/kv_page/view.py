"""What the page shows of a KvResult: maps of numbers, and sentences."""

from __future__ import annotations

import math
from typing import Any

from accuracy_core.outcome import Verdict
from accuracy_core.schemas import KvHeadMetrics, KvPattern, KvResult

#: columns of a map over positions; longer sequences show the worst of several positions in one column
MAX_COLUMNS = 256
#: rows of the table of heads
MAX_HEADS = 24

_PATTERNS = {
    KvPattern.NONE: "no pattern",
    KvPattern.NONFINITE: "values that are NaN or infinite",
    KvPattern.ONE_SLOT: "one slot: a single position was written wrongly",
    KvPattern.SHIFTED: "shifted: the right values at the wrong positions (slot mapping)",
    KvPattern.FROM_BLOCK: "from a block boundary on (block table or stride)",
    KvPattern.HEADS: "whole heads (mapping of KV heads)",
    KvPattern.SCALE: "scaled: one factor explains the error (quantisation scale)",
    KvPattern.DECODE_ROWS: "only rows that decode steps wrote",
    KvPattern.SPREAD: "spread over the layer: wrong before it was cached",
}


def pattern_text(pattern: KvPattern) -> str:
    """A pattern, in words."""
    return _PATTERNS[pattern]


def headline(result: KvResult) -> str:
    """The result in one sentence."""
    if result.error:
        return f"Not compared: {result.error}"
    if result.verdict is None:
        return "Not measured: parts of the cache could not be compared."
    if result.verdict is Verdict.PASS:
        heads = len({(item.layer, item.head) for item in result.heads})
        return f"K and V of {heads} heads at {result.positions} positions are within the format's noise."
    place = result.first_bad
    if place is None:
        return "The caches could not be compared: see the guards."
    where = f"layer {place.layer}"
    where += f", head {place.head}" if place.head is not None else ""
    where += f", position {place.position}" if place.position is not None else ""
    name = "K" if place.which == "key" else "V"
    if place.position is not None:
        where += " (prefill)" if place.position < result.prompt_length else " (decode)"
    blame = {
        True: "The cache itself is at fault.",
        False: "The cache holds what it was given: the fault lies before it.",
        None: "Whether the cache or what it was given is at fault cannot be told from the cache alone.",
    }[result.cache_fault]
    pattern = "" if result.pattern is KvPattern.NONE else f" Pattern: {pattern_text(result.pattern)}."
    return f"First bad place: {name} of {where}.{pattern} {blame}"


def map_data(result: KvResult, guard: float) -> dict[str, Any]:
    """Numbers of the heat maps: per side `heads` and `bc` [layer][head], `positions` [layer][column]."""
    layers = result.layers or sorted({item.layer for item in result.heads})
    step = max(1, -(-result.positions // MAX_COLUMNS))
    sides = {}
    for which in ("key", "value"):
        mine = [item for item in result.heads if item.which == which]
        sides[which] = {
            "heads": _by_layer(mine, layers, "l2_ratio"),
            "bc": _by_layer(mine, layers, "bc"),
            "positions": [_columns(row, step) for row in result.position_ratio.get(which, [])],
        }
    place = result.first_bad
    return {
        "layers": layers,
        "prompt": result.prompt_length,
        "positions": result.positions,
        "step": step,
        "block": result.block_size,
        "guard": guard,
        "sides": sides,
        "bad": None if place is None else place.model_dump(),
    }


def worst_heads(result: KvResult) -> list[KvHeadMetrics]:
    """Heads by L2 ratio, worst first."""
    return sorted(result.heads, key=lambda item: -_or_worst(item.l2_ratio))[:MAX_HEADS]


def _or_worst(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _by_layer(items: list[KvHeadMetrics], layers: list[int], name: str) -> list[list[float | None]]:
    rows: dict[int, list[float | None]] = {layer: [] for layer in layers}
    for item in sorted(items, key=lambda metrics: metrics.head):
        rows.setdefault(item.layer, []).append(_short(getattr(item, name)))
    return [rows[layer] for layer in layers]


def _columns(row: list[float], step: int) -> list[float | None]:
    """The worst of each `step` positions; None where none is present."""
    return [
        max((value for part in row[start : start + step] if (value := _short(part)) is not None), default=None)
        for start in range(0, len(row), step)
    ]


def _short(value: float) -> float | None:
    """Three digits are as much as a colour shows; infinities stay apart from what was not measured."""
    if math.isnan(value):
        return None
    return 1e30 if math.isinf(value) else float(f"{value:.3g}")
