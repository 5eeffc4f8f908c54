"""What a comparison of logits returns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from accuracy_core.outcome import Verdict
from accuracy_core.schemas import GuardHit, Phase, RouteResult, RowMetrics


@dataclass(frozen=True)
class Worst:
    """The row to look at first. `limit` is NaN when no guard fired and `metric` is only the largest value."""

    prompt: int
    batch: int
    token: int
    metric: str
    value: float
    limit: float


@dataclass(frozen=True)
class PromptVerdict:
    """One prompt's part: `two_way_passed` over its rows, guards on it (those on the whole run included)."""

    prompt: int
    verdict: Verdict
    two_way_passed: bool
    phase: Phase
    first_bad_token: int | None
    guards: list[GuardHit]


@dataclass(frozen=True)
class MultiPromptValidationResult:
    """Result over all prompts.

    `passed` is `verdict == pass`. `per_prompt_results` holds `(passed, results)` per prompt, `results[batch][token]` a
    dict of that row's metrics; `aggregate_metrics` the numbers over all prompts. `rows` are ordered by prompt, token,
    batch row. `worst_guard` is the hit that is furthest beyond its limit.
    """

    passed: bool
    verdict: Verdict
    routes: list[RouteResult]
    guards: list[GuardHit]
    rows: list[RowMetrics]
    per_prompt: list[PromptVerdict]
    aggregate_metrics: dict[str, Any]
    phase: Phase
    first_bad_token: int | None
    worst: Worst | None
    worst_guard: GuardHit | None

    @cached_property
    def per_prompt_results(self) -> list[tuple[bool, list[list[dict[str, Any]]]]]:
        """Documented form: one `(passed, results)` per prompt; see `rows` for typed rows."""
        return [(p.two_way_passed and not p.guards, self.results(p.prompt)) for p in self.per_prompt]

    def prompt_rows(self, prompt: int) -> list[RowMetrics]:
        """Rows of one prompt, by token, then batch row."""
        return [r for r in self.rows if r.prompt == prompt]

    def results(self, prompt: int) -> list[list[dict[str, Any]]]:
        """`[batch][token]` dicts of one prompt, as `visualize_logit_results` takes them."""
        rows = self.prompt_rows(prompt)
        batches = sorted({r.batch for r in rows})
        return [[r.model_dump() for r in rows if r.batch == b] for b in batches]

    @property
    def aggregates(self) -> dict[str, float]:
        """The numeric part of `aggregate_metrics`."""
        return {k: v for k, v in self.aggregate_metrics.items() if type(v) in (int, float)}
