"""Verdict of one tap in one phase, from its errors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from accuracy_core.capture.limits import TensorLimits, kind_of
from accuracy_core.capture.taps import layer_of
from accuracy_core.capture.tensor_error import TensorError
from accuracy_core.outcome import Verdict
from accuracy_core.schemas.prompt_result import Phase
from accuracy_core.schemas.tensor_result import ModuleMetrics


@dataclass(frozen=True)
class TapErrors:
    """Everything about one tap of one prompt.

    `whole`: against the references' own run. `local`: against what the reference's module makes of the target's own
    inputs. `judged` bool (positions,): False where the outcome is a toss-up and no error says anything. `loose`: the
    tap's module was given tensors that were not tapped, so its local error holds that of other modules. `first`:
    position of the first row.
    """

    tap: str
    order: int
    whole: TensorError | None = None
    local: TensorError | None = None
    judged: torch.Tensor | None = None
    loose: bool = False
    problem: str = ""
    first: int = 0


@dataclass(frozen=True)
class Judgement:
    """Metrics of one phase; `bad` lists single positions over the limit, `heads` single heads."""

    metrics: ModuleMetrics
    bad: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    num_heads: int = 1
    reason: str = ""
    lean_ulps: float = 0.0

    @property
    def local_failed(self) -> bool:
        return bool(self.reason)


def judge_tap(
    errors: TapErrors,
    prompt_length: int,
    dtype: torch.dtype,
    limits: TensorLimits,
    max_l2_ratio: float,
) -> list[Judgement]:
    """One judgement per phase that has rows: prefill (positions below `prompt_length`) and decode.

    FAIL for values that are not finite, for a shape that does not fit, and where the local error is over a limit. A
    global L2 ratio of `max_l2_ratio` and more is FAIL where nothing local was measured. Where the module is right by
    itself, what it was given is not: SUSPECT for a loose tap, PASS where everything before was tapped and is right,
    too. In float32 there is no narrower reference, so only the local error is judged. None where nothing was measured.
    """
    measured = errors.whole or errors.local
    if errors.problem or measured is None:
        metrics = ModuleMetrics(
            module=errors.tap, order=errors.order, layer=layer_of(errors.tap), phase=Phase.BOTH, rows=0,
            verdict=Verdict.FAIL if errors.problem else None, problem=errors.problem or "not measured",
        )  # fmt: skip
        return [Judgement(metrics, reason=errors.problem)]
    decode = max(prompt_length - errors.first, 0)
    bounds = ((Phase.PREFILL, 0, decode), (Phase.DECODE, decode, measured.positions))
    found = []
    for phase, start, stop in bounds:
        stop = min(stop, measured.positions)
        if start < stop:
            found.append(_judge_phase(errors, phase, start, stop, dtype, limits, max_l2_ratio))
    return found


def _judge_phase(
    errors: TapErrors,
    phase: Phase,
    start: int,
    stop: int,
    dtype: torch.dtype,
    limits: TensorLimits,
    max_l2_ratio: float,
) -> Judgement:
    values: dict[str, object] = {}
    nonfinite: tuple[int, ...] = ()
    reason, num_heads, lean = "", 1, 0.0
    bad: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    judged_locally = errors.local is not None
    verdict: Verdict | None = Verdict.PASS
    if errors.whole is not None:
        whole = errors.whole.rows(start, stop)
        values |= _whole_metrics(whole, limits.floor(dtype), dtype, limits.bc_min_samples)
        nonfinite = _positions(whole.nonfinite.sum(1) > 0)
    if errors.local is not None:
        local = errors.local.rows(start, stop)
        keep = None if errors.judged is None else errors.judged[start:stop]
        found = _local(local, keep, errors, dtype, limits)
        values |= found.values
        values["worst_position"] = errors.first + start + found.worst if found.worst is not None else None
        reason, bad, heads, num_heads, lean = found.reason, found.bad, found.heads, local.norm.shape[1], found.lean
        nonfinite = tuple(sorted({*nonfinite, *_positions(local.nonfinite.sum(1) > 0)}))
    if nonfinite:
        source = errors.local or errors.whole
        assert source is not None
        counts = source.rows(start, stop).nonfinite
        values["nonfinite"] = max(int(counts.sum()), 1)
        values["worst_position"] = errors.first + start + nonfinite[0]
        heads = _positions(counts.sum(0) > 0) if counts.shape[1] > 1 else ()
        values["worst_head"] = heads[0] if len(heads) == 1 else None
        num_heads = counts.shape[1]
        reason = (
            f"{values['nonfinite']} values are NaN or infinite, first at position {errors.first + start + nonfinite[0]}"
        )
        bad = nonfinite
    ratio = values.get("l2_ratio", float("nan"))
    assert isinstance(ratio, float)
    if reason:
        verdict = Verdict.FAIL
    elif ratio >= max_l2_ratio:
        explained = judged_locally and not errors.loose
        verdict = Verdict.PASS if explained else Verdict.SUSPECT if judged_locally else Verdict.FAIL
        if not judged_locally:
            reason = f"L2 error {ratio:.2f} times that of the reference, limit {max_l2_ratio:g}"
    elif not judged_locally and math.isnan(ratio):
        verdict = None
    metrics = ModuleMetrics(
        module=errors.tap, order=errors.order, layer=layer_of(errors.tap), phase=phase, rows=stop - start,
        verdict=verdict, **values,
    )  # type: ignore[arg-type]  # fmt: skip
    bad = tuple(errors.first + start + row for row in bad)
    return Judgement(metrics, bad, heads, num_heads, reason, lean)


def _whole_metrics(error: TensorError, floor: float, dtype: torch.dtype, bc_min_samples: int) -> dict[str, object]:
    norm = float(error.norm.sum())
    if norm == 0:
        return {}
    l2, base = (math.sqrt(float(item.sum()) / norm) for item in (error.target, error.base))
    values: dict[str, object] = {"l2": l2, "base_l2": base, "worst_position": None}
    if dtype is torch.float32:
        return values
    peak = float(error.peak.max())
    values["l2_ratio"] = l2 / max(base, floor)
    values["linf_ratio"] = float(error.linf.max()) / max(float(error.base_linf.max()), floor * peak)
    values["bc"] = error.bc(bc_min_samples)
    return values


@dataclass(frozen=True)
class _Local:
    values: dict[str, object]
    reason: str
    bad: tuple[int, ...]
    heads: tuple[int, ...] = ()
    lean: float = 0.0
    worst: int | None = None


def _local(
    error: TensorError, keep: torch.Tensor | None, errors: TapErrors, dtype: torch.dtype, limits: TensorLimits
) -> _Local:
    kind = "kernel" if errors.loose else kind_of(errors.tap)
    limit = float(getattr(limits, kind))
    floor = limits.floor(dtype)
    rows: torch.Tensor = torch.arange(error.positions) if keep is None else keep.nonzero().flatten()
    kept = error if keep is None else error.keep(keep)
    norm = float(kept.norm.sum())
    if norm == 0:
        # nothing to be relative to: zeros on the reference's side must be zeros on the target's
        wrong = _positions(kept.target.sum(1) > 0)
        reason = f"not zero at position {int(rows[wrong[0]])}" if wrong else ""
        return _Local({}, reason, tuple(int(rows[row]) for row in wrong), worst=int(rows[wrong[0]]) if wrong else None)
    base = torch.maximum(kept.base, kept.norm * floor**2)
    overall = math.sqrt(float(kept.target.sum()) / float(torch.maximum(kept.base.sum(), kept.norm.sum() * floor**2)))
    row_base = torch.maximum(kept.base.sum(1), kept.norm.sum(1) * floor**2)
    row = _ratio(kept.target.sum(1), row_base)
    head_base = torch.maximum(kept.base.sum(0), kept.norm.sum(0) * floor**2)
    head = _ratio(kept.target.sum(0), head_base)
    cell = _ratio(kept.target, base)
    widening = 1 + kept.positions**-0.5
    scale, lean = _scale(kept, limits.scale_floor(dtype), torch.finfo(dtype).eps)
    values: dict[str, object] = {
        "local_l2": math.sqrt(float(kept.target.sum()) / norm),
        "local_base_l2": math.sqrt(float(kept.base.sum()) / norm),
        "local_ratio": overall,
        "local_row_ratio": float(row.max()),
        "local_head_ratio": float(head.max()) if head.numel() > 1 else float("nan"),
        "local_scale_ratio": scale,
        "worst_head": int(head.argmax()) if head.numel() > 1 else None,
    }
    bad_rows = (row > limit * limits.row) | (cell > limit * limits.cell).any(1)
    bad_heads = (head > limit * widening * limits.head) | (cell > limit * limits.cell).any(0)
    reasons = []
    if overall > limit * widening:
        reasons.append(f"local error {overall:.2f} times that of the reference, limit {limit * widening:.2f}")
    if bool(bad_rows.any()):
        reasons.append(f"{int(bad_rows.sum())} of {kept.positions} positions off, up to {float(row.max()):.1f} times")
    if head.numel() > 1 and bool(bad_heads.any()):
        listed = ", ".join(map(str, _positions(bad_heads)[:8]))
        reasons.append(f"head {listed} of {head.numel()} off, up to {float(head.max()):.1f} times")
    judged_scale = kind in ("projection", "norm") and kept.positions >= limits.scale_min_rows
    if judged_scale and scale > limits.scale:
        reasons.append(f"errors within a position share one factor, {scale:.1f} times the reference's")
    return _Local(
        values,
        "; ".join(reasons),
        tuple(int(rows[index]) for index in _positions(bad_rows)),
        _positions(bad_heads) if head.numel() > 1 else (),
        lean,
        int(rows[int(row.argmax())]),
    )


def _scale(error: TensorError, floor: float, eps: float) -> tuple[float, float]:
    """Root mean square over positions of the factor that a position's errors have in common, over the reference's; and
    the mean factor in units of the dtype's spacing (negative: towards zero)."""
    norm = error.norm.sum(1)
    there = norm > 0
    factor = error.cross.sum(1)[there] / norm[there]
    base = error.base_cross.sum(1)[there] / norm[there]
    ratio = float(factor.square().mean().sqrt()) / max(float(base.square().mean().sqrt()), floor)
    return ratio, float(error.cross.sum() / error.norm.sum()) / eps


def _ratio(target: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """sqrt(target / base); 0 where both are 0, infinite where only the base is."""
    quotient = torch.where(target == 0, torch.zeros_like(target), target / base)
    return quotient.sqrt()


def _positions(mask: torch.Tensor) -> tuple[int, ...]:
    return tuple(mask.nonzero().flatten().tolist())
