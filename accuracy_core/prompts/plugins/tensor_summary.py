"""All prompts of a tensor comparison together: worst rows per module, the culprit, notes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from accuracy_core.outcome import Outcome, Verdict, worst
from accuracy_core.schemas import (
    ComparisonSummary,
    Culprit,
    Finding,
    ModuleMetrics,
    Phase,
    PluginStatus,
    Severity,
    TensorCompareResult,
)
from accuracy_core.schemas.tensor_result import DivergentModule

_RANK = {None: -1, Verdict.PASS: 0, Verdict.SUSPECT: 1, Verdict.FAIL: 2}
#: what to look at when a tap is the first that is wrong
_SUSPECTS = {
    "embed_tokens": "the embedding: its weight, its rows, the factor it is multiplied by",
    "input_layernorm": "the norm: epsilon, sums in float32, its weight",
    "query": "rotary embedding (base, scaling, positions), query norm",
    "key": "rotary embedding (base, scaling, positions), key norm",
    "value": "what is handed to attention as value",
    "attn": "attention: scale, mask, soft cap, head mapping, and what it reads from the KV cache",
    "residual_mid": "the residual sum after attention",
    "act": "the activation, and the order of gate and up",
    "experts": "experts: choice, weights of the chosen, their products",
    "gate": "the router",
    "router": "the router",
    "lm_head": "the output head: its weight, ties, padding, soft cap",
}


def summarise(results: Sequence[TensorCompareResult], max_l2_ratio: float, target: str) -> ComparisonSummary:
    """Worst row per module and phase over the prompts, and the first divergent module of the worst prompt."""
    rows: dict[tuple[str, Phase], ModuleMetrics] = {}
    for result in results:
        for row in result.modules:
            key = (row.module, row.phase)
            if key not in rows or _badness(row) > _badness(rows[key]):
                rows[key] = row
    verdicts = [result.verdict for result in results if result.verdict is not None]
    return ComparisonSummary(
        verdict=worst(verdicts) if verdicts else None,
        max_l2_ratio=max_l2_ratio,
        target=target,
        modules=sorted(rows.values(), key=lambda row: (row.order, row.phase != Phase.PREFILL)),
        first_divergent=_first(results)[1],
        prompts={str(result.index): result.verdict for result in results},
    )


def status_of(plugin: str, results: Sequence[TensorCompareResult]) -> PluginStatus:
    """Worst verdict of all prompts, largest ratios."""
    measured = [result for result in results if result.verdict is not None]
    rows = [row for result in measured for row in result.modules]
    aggregates = {
        name: max(
            (getattr(row, name) for row in rows if getattr(row, name) == getattr(row, name)), default=float("nan")
        )
        for name in ("l2_ratio", "linf_ratio", "local_ratio")
    }
    hits = [hit for result in measured for hit in result.guards]
    verdicts = [result.verdict for result in measured if result.verdict is not None]
    return PluginStatus(
        plugin=plugin,
        outcome=Outcome.NUMERICS if measured else Outcome.NOT_MEASURED,
        verdict=worst(verdicts) if verdicts else None,
        worst=hits[0] if hits else None,
        aggregates={name: value for name, value in aggregates.items() if value == value},
        per_prompt={str(result.index): result.verdict for result in results if result.error is None},
        errors={str(result.index): result.error for result in results if result.error is not None},
    )


def findings_of(results: Sequence[TensorCompareResult]) -> list[Finding]:
    """Notes and missing taps, once per text."""
    found = []
    notes = {re.sub(r"[\d.]+", "", note): note for result in reversed(results) for note in result.notes}
    for note in notes.values():  # of notes that differ in their numbers alone the first prompt's
        found.append(Finding(check="tensor_compare", severity=Severity.INFO, evidence=note, outcome=Outcome.NUMERICS))
    reasons: dict[str, list[str]] = {}
    for result in results:
        for tap, reason in result.missing.items():
            reasons.setdefault(reason, []).append(tap)
    for reason, listed in reasons.items():
        taps = list(dict.fromkeys(listed))
        more = f" and {len(taps) - 3} more" if len(taps) > 3 else ""
        found.append(
            Finding(
                check="tensor_compare",
                severity=Severity.INFO,
                evidence=f"not compared: {', '.join(taps[:3])}{more}: {reason}",
                outcome=Outcome.NOT_MEASURED,
            )
        )
    return found


def culprit_of(results: Sequence[TensorCompareResult]) -> Culprit | None:
    """The first module that is wrong by itself, over all prompts; None when none is."""
    result, first = _first(results)
    if result is None or first is None:
        return None
    name = first.module.rpartition(".")[2]
    kind = "local" if first.local else "global"
    size = f"{kind} error {first.ratio:.2f} times the reference's" if first.ratio == first.ratio else kind
    suspects = [_SUSPECTS[name]] if name in _SUSPECTS else [f"the weights and inputs of {first.module}"]
    return Culprit(
        phase=first.phase,
        module=first.module,
        layer=first.layer,
        head=first.head,
        position=first.position,
        prompt=result.index,
        evidence=[f"first module that is wrong by itself: {first.module} ({size})", first.evidence],
        suspects=suspects,
    )


def _first(
    results: Sequence[TensorCompareResult],
) -> tuple[TensorCompareResult | None, DivergentModule | None]:
    """The prompt whose first divergent module comes earliest, and that module."""
    failed = [result for result in results if result.first_divergent is not None]
    if not failed:
        return None, None

    def place(result: TensorCompareResult) -> tuple[int, int]:
        first = result.first_divergent
        orders = [row.order for row in result.modules if first is not None and row.module == first.module]
        return (min(orders, default=0), result.index)

    chosen = min(failed, key=place)
    return chosen, chosen.first_divergent


def _badness(row: ModuleMetrics) -> tuple[int, int, float]:
    ratio = row.local_ratio if row.local_ratio == row.local_ratio else row.l2_ratio
    return _RANK[row.verdict], row.nonfinite, ratio if ratio == ratio else 0.0
