"""The ways of serving that must not change logits: how to ask for each, and how to see that it took place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from accuracy_core.schemas import ConsistencyKind, ReplayConditions, ReplayConduct

#: an accuracy run's way: one request at a time, each prompt computed whole
NEUTRAL = ReplayConditions()


@dataclass(frozen=True)
class ServingWay:
    """`capability`: field of `Capabilities` that an engine needs for it. `took_place` reads a request's conduct.

    `absent` says what happened instead; `confirm` what a user does about logits that depend on it.
    """

    kind: ConsistencyKind
    title: str
    capability: str
    conditions: ReplayConditions
    took_place: Callable[[ReplayConduct], bool]
    absent: str
    confirm: str


def serving_ways(prefill_chunk: int) -> list[ServingWay]:
    """All ways, in the order in which they are tried; prompts are prefilled in pieces of `prefill_chunk` tokens."""
    return [
        ServingWay(
            ConsistencyKind.PREFIX_CACHE,
            "prefix caching",
            "prefix_caching",
            ReplayConditions(read_prefixes=True),
            lambda conduct: conduct.cached_tokens > 0,
            "none of its tokens came out of the prefix cache",
            "serve with --no-enable-prefix-caching to confirm, then look at what a cached block is known by (all "
            "tokens before it, adapter, multimodal input) and at who writes into a block after it was cached",
        ),
        ServingWay(
            ConsistencyKind.BATCHING,
            "batching",
            "batching",
            ReplayConditions(together=True),
            lambda conduct: conduct.largest_batch > 1,
            "it had every engine call to itself",
            "serve with --max-num-seqs 1 to confirm, then look at kernels that choose their tiling or reduction by "
            "batch size, and at per-request metadata (block tables, lengths, positions) in a mixed batch",
        ),
        ServingWay(
            ConsistencyKind.CHUNKED_PREFILL,
            "chunked prefill",
            "chunked_prefill",
            ReplayConditions(prefill_chunk=prefill_chunk),
            lambda conduct: len(conduct.prefill_chunks) > 1,
            "its prompt was prefilled in one piece",
            "serve with --no-enable-chunked-prefill to confirm, then look at positions, masks and cache offsets where "
            "one piece ends and the next begins",
        ),
    ]


def way_title(kind: ConsistencyKind) -> str:
    """A check, in words."""
    titles = {way.kind: way.title for way in serving_ways(1)}
    return titles.get(kind, "asking again")
