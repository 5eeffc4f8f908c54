"""Result of comparing one prompt's KV cache: metrics per layer and head, the first bad place and its pattern."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.schemas.base import Part, Schema
from accuracy_core.schemas.prompt_result import GuardHit, Phase, RouteResult


class KvPattern(StrEnum):
    """How the bad places lie, and what that means."""

    NONE = "none"
    NONFINITE = "nonfinite"
    ONE_SLOT = "one_slot"  # write offset
    SHIFTED = "shifted"  # the right values at the wrong positions: slot mapping
    FROM_BLOCK = "from_block"  # bad from a block boundary on: stride or block table
    HEADS = "heads"  # whole heads: GQA mapping
    SCALE = "scale"  # values scaled by one factor: quantisation scale
    DECODE_ROWS = "decode_rows"  # only what decode steps wrote
    SPREAD = "spread"  # everywhere in a layer: what was computed before the cache was already wrong


class KvHeadMetrics(Part):
    """One layer's K or V of one KV head. NaN: not measured."""

    layer: int
    head: int
    which: Literal["key", "value"]
    cosine: float = Field(float("nan"), description="cosine similarity of target and FP32, over all positions")
    linf: float = float("nan")
    l2: float = Field(float("nan"), description="relative L2 error of the target against FP32")
    base_linf: float = float("nan")
    base_l2: float = float("nan")
    linf_ratio: float = float("nan")
    l2_ratio: float = float("nan")
    bc: float = float("nan")
    verdict: Verdict | None = None


class KvPlace(Part):
    layer: int
    head: int | None = None
    position: int | None = None
    which: Literal["key", "value"]


class KvResult(Schema):
    """`prompt_analysis/prompt_<i>/kv_cache_result.json`. Maps are layer-major lists for the report's heat maps."""

    index: int
    outcome: Outcome = Outcome.NUMERICS
    verdict: Verdict | None = None
    phase: Phase = Phase.NONE
    prompt_length: int = 0
    positions: int = 0
    block_size: int | None = None
    heads: list[KvHeadMetrics] = Field(default_factory=list)
    position_ratio: dict[str, list[list[float]]] = Field(
        default_factory=dict, description="key, value -> [layer][position] L2 ratio"
    )
    layers: list[int] = Field(default_factory=list, description="layers of the maps' rows; empty: 0, 1, …")
    cosine_min: float = Field(float("nan"), description="lowest cosine similarity of a row")
    routes: list[RouteResult] = Field(default_factory=list)
    aggregates: dict[str, float] = Field(default_factory=dict)
    pattern: KvPattern = KvPattern.NONE
    first_bad: KvPlace | None = None
    cache_fault: bool | None = Field(
        None, description="the cache itself is at fault; False: it holds what it was given; None: cannot be told"
    )
    written: bool | None = Field(
        None, description="cached rows equal what attention was given to cache; None: that was not recorded"
    )
    missing: dict[str, str] = Field(default_factory=dict, description="what could not be compared -> why")
    guards: list[GuardHit] = Field(default_factory=list)
    evidence: list[str] = Field(default_factory=list)
    error: str | None = None
