"""Result of comparing one prompt's rows: metrics per row, guards that fired, routes, verdict."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.schemas.base import Part, Schema


class Phase(StrEnum):
    """Where rows are bad: token 0 comes from prefill, later tokens from decode."""

    NONE = "none"
    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"


class GuardHit(Part):
    """A guard that fired. Guards cannot be outvoted by a rescue route."""

    guard: str
    prompt: int
    batch: int = 0
    token: int = Field(description="generation index, 0-based; -1 where the guard is not about one token")
    value: float
    limit: float
    detail: str = ""


class RouteResult(Part):
    """A route to a pass: documented `two_way`, `sigma_ratio`, `agg_bc`; ours `typical_ratio`. None: not measured."""

    route: str
    passed: bool | None
    value: float
    threshold: float
    detail: str = ""
    informative: bool = Field(False, description="shown beside the verdict, no way to a pass")


class RowMetrics(Part):
    """One row = prompt x batch row x generated token. Ratios are NaN in two-way mode or where not measured."""

    prompt: int
    batch: int = 0
    token: int
    topk_error: dict[str, float] = Field(description="error per k of the tolerance map, keys as documented")
    two_way_passed: bool
    reference_id: int = Field(description="argmax of the reference (FP32 in three-way, expected in two-way)")
    expected_id: int = Field(description="argmax of the expected logits")
    target_id: int = Field(description="the target's choice: sampled id, else argmax")
    diverged: bool = Field(False, description="target_id differs from expected_id")
    divergence_gap: float = 0.0
    divergence_limit: float = float("nan")
    shift: float = float("nan")
    slope: float = float("nan")
    linf: float = float("nan")
    l2: float = float("nan")
    base_linf: float = float("nan")
    base_l2: float = float("nan")
    linf_ratio: float = float("nan")
    l2_ratio: float = float("nan")
    bc: float = float("nan")
    kl: float = float("nan")
    top1_agree: bool = True
    top5_overlap: float = float("nan")
    bias: float = float("nan")
    expected_top2: list[float] = Field(default_factory=list, description="two largest expected logits")
    target_top2: list[float] = Field(default_factory=list, description="two largest target logits")
    ulp: float = float("nan")
    guards: list[GuardHit] = Field(default_factory=list)

    @property
    def bad(self) -> bool:
        """True when a guard fired on this row."""
        return bool(self.guards)


class PromptResult(Schema):
    """`prompt_analysis/prompt_<i>/prompt_result.json`."""

    index: int
    plugin: str
    prompt: str = ""
    prompt_token_ids: list[int] = Field(default_factory=list)
    token_ids: list[int] = Field(default_factory=list, description="forced (reference) tokens, one per row")
    tokens: list[str] = Field(default_factory=list, description="their decoded text, for display")
    outcome: Outcome = Outcome.NUMERICS
    verdict: Verdict | None = None
    phase: Phase = Phase.NONE
    first_bad_token: int | None = None
    routes: list[RouteResult] = Field(default_factory=list)
    guards: list[GuardHit] = Field(default_factory=list)
    rows: list[RowMetrics] = Field(default_factory=list)
    aggregates: dict[str, float] = Field(default_factory=dict)
    golden_key: str | None = None
    engine_route: str | None = None
    error: str | None = None
