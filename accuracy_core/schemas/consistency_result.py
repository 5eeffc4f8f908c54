"""Result of asking an engine the same in several ways of serving: its logits must not depend on the way."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from accuracy_core.outcome import Outcome, Verdict, worst
from accuracy_core.schemas.base import Part, Schema
from accuracy_core.schemas.prompt_result import Phase
from accuracy_core.schemas.replay import ReplayConduct


class ConsistencyKind(StrEnum):
    """What is done a second time, and how."""

    REPEAT = "repeat"
    PREFIX_CACHE = "prefix_cache"
    BATCHING = "batching"
    CHUNKED_PREFILL = "chunked_prefill"


#: differences are in units of the dtype's noise on the same rows, or relative to the logits themselves
Yardstick = Literal["dtype_noise", "logits"]


class ConsistencyRows(Part):
    """One prompt in one check, over its rows. NaN: not measured. Sizes are L2 norms without a row's constant part."""

    index: int | None = Field(None, description="number in the run directory; None: a prompt added for the check")
    label: str = ""
    tokens: int = Field(description="rows that were compared")
    bit_equal: bool
    pooled: float = Field(float("nan"), description="difference over its rows, by the check's yardstick")
    row: float = Field(float("nan"), description="the same of the worst row")
    error_ratio: float = Field(
        float("nan"), description="error against FP32 under the condition, over that without it; all rows pooled"
    )
    worst_token: int | None = Field(None, description="generation index of the worst row")
    first_bad_token: int | None = None
    phase: Phase = Phase.NONE
    verdict: Verdict
    reasons: list[str] = Field(default_factory=list, description="what failed, in words")
    conduct: ReplayConduct | None = Field(None, description="how the engine ran it under the condition")


class ConsistencyCheck(Part):
    """One way of serving against the neutral one. `verdict` None: not measured."""

    kind: ConsistencyKind
    verdict: Verdict | None = None
    reason: str = Field("", description="why it was not measured, or what failed over all prompts together")
    lacking: bool = Field(False, description="not measured since the engine does not serve that way at all")
    yardstick: Yardstick = "dtype_noise"
    pooled: float = Field(float("nan"), description="difference over all rows of all prompts, by the yardstick")
    limits: dict[str, float] = Field(default_factory=dict, description="pooled, prompt, row, error_ratio -> limit")
    prompts: list[ConsistencyRows] = Field(default_factory=list)
    left_out: dict[str, str] = Field(default_factory=dict, description="prompt -> why it is not in this check")

    @property
    def worst(self) -> ConsistencyRows | None:
        """The prompt that is furthest off, failing ones first; None when nothing was compared."""
        return max(self.prompts, key=lambda rows: (rows.verdict is Verdict.FAIL, rows.row), default=None)


class ConsistencyResult(Schema):
    """`prompt_analysis/engine_consistency.json`."""

    target: str
    dtype: str
    output_length: int
    prefill_chunk: int
    added: list[str] = Field(default_factory=list, description="prompts that the run's own were too short or few for")
    checks: list[ConsistencyCheck] = Field(default_factory=list)

    @property
    def failed(self) -> list[ConsistencyCheck]:
        return [check for check in self.checks if check.verdict is Verdict.FAIL]

    @property
    def unmeasured(self) -> list[ConsistencyCheck]:
        return [check for check in self.checks if check.verdict is None]

    @property
    def outcome(self) -> Outcome:
        """Numerics as soon as one way of serving was judged."""
        return Outcome.NOT_MEASURED if self.verdict is None else Outcome.NUMERICS

    @property
    def verdict(self) -> Verdict | None:
        """The worst check's. Repeating alone is no pass: None unless some way of serving was judged, or one failed."""
        found = {check.kind: check.verdict for check in self.checks if check.verdict is not None}
        judged = set(found) - {ConsistencyKind.REPEAT} or Verdict.FAIL in found.values()
        return worst(list(found.values())) if judged else None
