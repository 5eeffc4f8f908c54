"""From the rows of A-A-B-B replays to a verdict per way of serving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from accuracy_core.consistency.difference import Difference, difference, error_size
from accuracy_core.consistency.limits import ConsistencyLimits
from accuracy_core.consistency.yardstick import Yardstick, pooled, yardsticks
from accuracy_core.outcome import Verdict
from accuracy_core.schemas import ConsistencyCheck, ConsistencyKind, ConsistencyRows, Phase, ReplayConduct

_BROKEN = "a row is not finite, masked differently, or missing"


@dataclass(frozen=True)
class Replays:
    """One prompt: float32 (tokens, vocab) each. `neutral` are A1 and A2; `under` B1 and B2, under the condition.

    `fp32` and `expected` are the references' rows in FP32 and in the target's dtype, None where there are none.
    """

    index: int | None
    label: str
    neutral: tuple[torch.Tensor, torch.Tensor]
    under: tuple[torch.Tensor, torch.Tensor]
    fp32: torch.Tensor | None = None
    expected: torch.Tensor | None = None
    conduct: ReplayConduct | None = None


def unmeasured(kind: ConsistencyKind, reason: str, *, lacking: bool = False) -> ConsistencyCheck:
    """A check that could not be made."""
    return ConsistencyCheck(kind=kind, reason=reason, lacking=lacking)


def judge_repeat(replays: Sequence[Replays], dtype: str) -> ConsistencyCheck:
    """A2 against A1: finite, and equal to the last bit, or the engine is not deterministic. `under` is not used."""
    if not replays:
        return unmeasured(ConsistencyKind.REPEAT, "")
    sticks = _sticks(replays, dtype)
    apart = [difference(*item.neutral) for item in replays]
    rows = []
    for item, one, stick in zip(replays, apart, sticks, strict=True):
        ratios = stick.rows(one)
        reasons = []
        if bool(one.broken.any()):
            reasons.append(_BROKEN)
        elif not one.bit_equal:
            reasons.append(f"asked again the same way, rows differ by up to {_largest(ratios):.3g} {stick.unit}")
        rows.append(_described(item, one, stick, one.broken | (one.size != 0), reasons))
    return _check(ConsistencyKind.REPEAT, rows, apart, sticks, {})


def judge_way(
    kind: ConsistencyKind, replays: Sequence[Replays], dtype: str, limits: ConsistencyLimits
) -> ConsistencyCheck:
    """B1 and B2 against A1, for every prompt; the one that is further off counts.

    A difference counts in units of the noise of `dtype` on the same rows, `||dtype - FP32||` (see `Yardstick`). A
    prompt fails when a row, or its rows together, are further apart than the limits allow, when its error against FP32
    grows by more, when a row is not finite or lost, or when B1 and B2 differ though A1 and A2 do not; the check fails
    with a prompt, or when all rows together are too far apart. Where A1 and A2 are no basis, not finite or themselves
    further apart than the limits, nothing can be said: not measured.
    """
    if not replays:
        return unmeasured(kind, "")
    sticks = _sticks(replays, dtype)
    allowed = _allowed(sticks[0], dtype, limits)
    floor = [stick.rows(difference(*item.neutral)) for item, stick in zip(replays, sticks, strict=True)]
    if not all(bool((ratios <= allowed["row"]).all()) for ratios in floor):
        return unmeasured(kind, "without it the engine's rows are not finite, or differ as much when it is asked again")
    steady = all(torch.equal(*item.neutral) for item in replays)
    apart = [_furthest(item) for item in replays]
    rows = [
        _judged(item, one, stick, allowed, steady=steady)
        for item, one, stick in zip(replays, apart, sticks, strict=True)
    ]
    return _check(kind, rows, apart, sticks, allowed)


def _judged(
    item: Replays, apart: Difference, stick: Yardstick, allowed: dict[str, float], *, steady: bool
) -> ConsistencyRows:
    ratios, together, error_ratio = stick.rows(apart), pooled([apart], [stick]), _error_ratio(item, stick)
    broken = bool(apart.broken.any())
    bad = apart.broken | ~(ratios <= allowed["row"])
    reasons = [_BROKEN] if broken else []
    if not broken and bool(bad.any()):
        reasons.append(_over("a row differs", _largest(ratios), allowed["row"], stick))
    if not broken and "prompt" in allowed and not together <= allowed["prompt"]:
        reasons.append(_over("its rows together differ", together, allowed["prompt"], stick))
    if not broken and "error_ratio" in allowed and not error_ratio <= allowed["error_ratio"]:
        reasons.append(f"the error against FP32 grows {error_ratio:.3g} times, limit {allowed['error_ratio']:.3g}")
    if steady and not torch.equal(*item.under):
        reasons.append("two runs under the condition differ, though two without it are equal")
    return _described(item, apart, stick, bad, reasons, error_ratio)


def _described(
    item: Replays,
    apart: Difference,
    stick: Yardstick,
    bad: torch.Tensor,
    reasons: Sequence[str],
    error_ratio: float = float("nan"),
) -> ConsistencyRows:
    """`bad`, bool (rows,), places a failure; where no single row is, the worst one stands for all."""
    ratios = stick.rows(apart)
    reasons = list(reasons) if len(ratios) else ["the engine gave no row"]
    worst = int(ratios.argmax()) if len(ratios) else None
    places = [int(token) for token in bad.nonzero().flatten()] or ([worst] if worst is not None else [])
    return ConsistencyRows(
        index=item.index,
        label=item.label,
        tokens=len(ratios),
        bit_equal=apart.bit_equal,
        pooled=pooled([apart], [stick]),
        row=_largest(ratios),
        error_ratio=error_ratio,
        worst_token=worst,
        first_bad_token=places[0] if reasons and places else None,
        phase=_phase(places) if reasons else Phase.NONE,
        verdict=Verdict.FAIL if reasons else Verdict.PASS,
        reasons=reasons,
        conduct=item.conduct,
    )


def _check(
    kind: ConsistencyKind,
    rows: list[ConsistencyRows],
    apart: Sequence[Difference],
    sticks: Sequence[Yardstick],
    allowed: dict[str, float],
) -> ConsistencyCheck:
    together = pooled(apart, sticks)
    failed = any(one.verdict is Verdict.FAIL for one in rows)
    beyond = "pooled" in allowed and not together <= allowed["pooled"]
    return ConsistencyCheck(
        kind=kind,
        verdict=Verdict.FAIL if failed or beyond else Verdict.PASS,
        reason=_over("all rows together differ", together, allowed["pooled"], sticks[0]) if beyond else "",
        yardstick="logits" if sticks[0].noise is None else "dtype_noise",
        pooled=together,
        limits=allowed,
        prompts=rows,
    )


def _sticks(replays: Sequence[Replays], dtype: str) -> list[Yardstick]:
    return yardsticks(
        [None if item.expected is None or item.fp32 is None else (item.expected, item.fp32) for item in replays], dtype
    )


def _allowed(stick: Yardstick, dtype: str, limits: ConsistencyLimits) -> dict[str, float]:
    if stick.noise is not None:
        return limits.model_dump(exclude={"relative"})
    return {"row": limits.relative[dtype]}


def _furthest(item: Replays) -> Difference:
    """Of B1 and B2 the one that is further from A1 in its worst row."""
    both = [difference(item.neutral[0], under) for under in item.under]
    return max(both, key=lambda one: _largest(one.size))


def _error_ratio(item: Replays, stick: Yardstick) -> float:
    """Error of B against FP32 over A1's, all rows pooled; NaN without references.

    Both count with no less than the dtype's noise: an engine that happens to be better than it owes nobody anything.
    """
    if stick.noise is None or item.fp32 is None:
        return float("nan")
    owed = stick.noise.norm()
    before = error_size(item.neutral[0], item.fp32).norm()
    after = torch.stack([error_size(under, item.fp32).norm() for under in item.under]).max()
    return float(torch.maximum(after, owed) / torch.maximum(before, owed))


def _largest(values: torch.Tensor) -> float:
    """The largest, infinite for none: nothing to compare is never a small difference."""
    return float(values.max()) if len(values) else float("inf")


def _phase(tokens: Sequence[int]) -> Phase:
    """Row 0 comes out of prefill, every later one out of a decode step."""
    later = any(token > 0 for token in tokens)
    if 0 in tokens:
        return Phase.BOTH if later else Phase.PREFILL
    return Phase.DECODE if later else Phase.NONE


def _over(what: str, value: float, limit: float, stick: Yardstick) -> str:
    return f"{what} by {value:.3g} {stick.unit}, limit {limit:.3g} ({value / limit:.1f} times over)"
