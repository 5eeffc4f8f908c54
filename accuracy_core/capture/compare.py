"""Captures compared: two tensors, three tensors, and all taps of a prompt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from accuracy_core.capture.limits import TensorLimits
from accuracy_core.capture.tensor_error import TensorError, tensor_error
from accuracy_core.errors import ReferenceError_

#: canonical tap -> (positions, features)
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class TensorComparison:
    """Two-way: `l2` and `linf` relative to the expected tensor, `cosine` similarity, `max_abs` largest difference."""

    l2: float = float("nan")
    linf: float = float("nan")
    cosine: float = float("nan")
    max_abs: float = float("nan")
    nonfinite: int = 0
    problem: str = ""


@dataclass(frozen=True)
class ThreeWayComparison:
    """Errors of target and expected against the baseline, and their ratios; `passed` is the documented rule."""

    l2: float = float("nan")
    base_l2: float = float("nan")
    l2_ratio: float = float("nan")
    linf_ratio: float = float("nan")
    bc: float = float("nan")
    nonfinite: int = 0
    problem: str = ""
    passed: bool = False


def compare_tensors(expected: torch.Tensor, actual: torch.Tensor) -> TensorComparison:
    """Compare two tensors of one shape in float64. Another shape or NaN on the target's side is told in the result.

    Raises ReferenceError_ for an expected tensor that is not finite.
    """
    problem = shape_problem(expected, actual)
    if problem:
        return TensorComparison(problem=problem)
    _check_reference(expected, "expected")
    e, a = expected.double().flatten(), actual.double().flatten()
    nonfinite = int((~torch.isfinite(a)).sum())
    if nonfinite:
        return TensorComparison(nonfinite=nonfinite, problem=f"{nonfinite} values are NaN or infinite")
    difference = a - e
    return TensorComparison(
        l2=_quotient(float(difference.norm()), float(e.norm())),
        linf=_quotient(_largest(difference), _largest(e)),
        cosine=_quotient(float(a @ e), float(a.norm() * e.norm()), same=1.0),
        max_abs=_largest(difference),
    )


def compare_tensors_three_way(
    baseline: torch.Tensor,
    expected: torch.Tensor,
    actual: torch.Tensor,
    *,
    max_l2_ratio: float = 3.0,
    limits: TensorLimits | None = None,
) -> ThreeWayComparison:
    """Compare a target with FP32 (`baseline`), in units of the error of the reference in its dtype (`expected`).

    Passes when the L2 ratio is below `max_l2_ratio`; never with NaN or another shape. The expected error counts as at
    least one rounding to `expected`'s dtype, so bit-equal references do not divide by zero. Raises ReferenceError_ for
    references that are not finite.
    """
    problem = shape_problem(baseline, actual) or shape_problem(baseline, expected, "expected")
    if problem:
        return ThreeWayComparison(problem=problem)
    for side, tensor in (("baseline", baseline), ("expected", expected)):
        _check_reference(tensor, side)
    limits = limits or TensorLimits.of()
    f, b, t = (tensor.reshape(1, -1) for tensor in (baseline, expected, actual))
    return three_way(tensor_error(f, b, t), expected.dtype, limits, max_l2_ratio)


def three_way(error: TensorError, dtype: torch.dtype, limits: TensorLimits, max_l2_ratio: float) -> ThreeWayComparison:
    """The comparison above from summed errors."""
    norm, floor = float(error.norm.sum()), limits.floor(dtype)
    nonfinite = int(error.nonfinite.sum())
    l2, base = (_quotient(math.sqrt(float(side.sum())), math.sqrt(norm)) for side in (error.target, error.base))
    ratio = _quotient(l2, max(base, floor)) if norm else l2
    peak = float(error.peak.max()) if error.positions else 0.0
    linf_ratio = _quotient(float(error.linf.max()), max(float(error.base_linf.max()), floor * peak))
    return ThreeWayComparison(
        l2, base, ratio, linf_ratio, error.bc(limits.bc_min_samples), nonfinite,
        f"{nonfinite} values are NaN or infinite" if nonfinite else "",
        passed=not nonfinite and ratio < max_l2_ratio,
    )  # fmt: skip


def compare_captures_two_way(expected: Tensors, actual: Tensors) -> dict[str, TensorComparison]:
    """`compare_tensors` of every tap of `expected`; one that `actual` lacks is told as a problem."""
    return {
        tap: compare_tensors(tensor, actual[tap]) if tap in actual else TensorComparison(problem="not captured")
        for tap, tensor in expected.items()
    }


def compare_captures_three_way(
    baseline: Tensors,
    expected: Tensors,
    actual: Tensors,
    *,
    max_l2_ratio: float = 3.0,
    limits: TensorLimits | None = None,
) -> dict[str, ThreeWayComparison]:
    """`compare_tensors_three_way` of every tap of `baseline`; one that a side lacks is told as a problem."""
    limits = limits or TensorLimits.of()
    result = {}
    for tap, tensor in baseline.items():
        if tap not in actual or tap not in expected:
            result[tap] = ThreeWayComparison(problem="not captured")
            continue
        result[tap] = compare_tensors_three_way(
            tensor, expected[tap], actual[tap], max_l2_ratio=max_l2_ratio, limits=limits
        )
    return result


def align_decode_captures(
    expected: Tensors, actual: Tensors, actual_positions: torch.Tensor | None = None
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Rows of both sides in the order of positions, over the positions that both have.

    `actual_positions` int64 (rows,): position of each row of `actual` (default: the last positions, in order); a
    position that was computed twice counts with its last row. Only `lm_head` may lack the leading positions, for
    which no logits are asked. Returns (expected, actual) of the taps that both have.
    """
    left, right = {}, {}
    for tap in expected:
        if tap not in actual:
            continue
        e, a = expected[tap], actual[tap]
        if actual_positions is not None and len(actual_positions) == a.shape[0]:
            latest = {int(position): row for row, position in enumerate(actual_positions.tolist())}
            known = [position for position in sorted(latest) if position < e.shape[0]]
            a = a[[latest[position] for position in known]]
            e = e[known]
        elif tap == "lm_head" and a.shape[0] < e.shape[0]:
            e = e[e.shape[0] - a.shape[0] :]
        left[tap], right[tap] = e, a
    return left, right


def shape_problem(reference: torch.Tensor, target: torch.Tensor, side: str = "target") -> str:
    """Why two tensors cannot be compared, naming both shapes; empty when they can."""
    if reference.shape == target.shape:
        return ""
    names = ("sequence length", "hidden size")
    which = [name for name, a, b in zip(names, reference.shape, target.shape, strict=False) if a != b] or [
        "number of dimensions"
    ]
    return f"{' and '.join(which)} differ: {side} {tuple(target.shape)}, reference {tuple(reference.shape)}"


def _check_reference(tensor: torch.Tensor, side: str) -> None:
    if not bool(torch.isfinite(tensor).all()):
        raise ReferenceError_(f"the {side} tensor holds NaN or infinite values: nothing can be judged against it")


def _largest(tensor: torch.Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def _quotient(value: float, by: float, same: float = 0.0) -> float:
    if by:
        return value / by
    return same if value == 0 else math.inf
