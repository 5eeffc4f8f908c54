"""Are a module's outputs close? Two-way against a fixed tolerance, three-way against the dtype's own noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from accuracy_core.errors import InputMismatchError
from accuracy_core.modules.limits import ModuleLimits, limits
from accuracy_core.numerics import bhattacharyya, error_ratio, l2_floor, linf_floor
from accuracy_core.numerics.log_histogram import histogram

Tensors = torch.Tensor | Sequence[torch.Tensor]


@dataclass(frozen=True)
class Closeness:
    """`worst`: |actual - expected| / max |expected| at the element that exceeds its bound `allowed` most, `where`:
    number of the tensor, then the element's indices."""

    passed: bool
    worst: float
    allowed: float
    where: tuple[int, ...]
    reason: str = ""


@dataclass(frozen=True)
class ThreeWayCloseness:
    """Figures over all tensors; `worst_linf_ratio` and `worst_l2_ratio` are the worst tensor's. NaN: not measured.

    `lean`: mean of `sign(f) (t - f)` less the reference's own, in RMS of the reference's errors: 0 for rounding to
    nearest, clearly negative when a target cuts digits off. It judges nothing; it says what a failure is.
    """

    passed: bool
    sigma_ratio: float
    bc: float
    worst_linf_ratio: float
    worst_l2_ratio: float
    lean: float = math.nan
    reason: str = ""


def assert_close(actual: Tensors, expected: Tensors, rtol: float = 0.0, atol: float = 1e-3) -> Closeness:
    """Raise AssertionError unless `|a - e| / m <= atol + rtol * |e| / m` everywhere, m the global max of |expected|.

    The scale is one for all tensors, so that an element near zero of a large tensor is not asked for more digits than
    its neighbours have. NaN or infinity in `actual` fails. Raises InputMismatchError for shapes that differ.
    """
    result = closeness(actual, expected, rtol, atol)
    if not result.passed:
        raise AssertionError(result.reason)
    return result


def closeness(actual: Tensors, expected: Tensors, rtol: float = 0.0, atol: float = 1e-3) -> Closeness:
    """As `assert_close`, without raising for a difference."""
    pairs = _pairs(actual, expected)
    scale = max(float(want.abs().max()) if want.numel() else 0.0 for _, want in pairs)
    if not math.isfinite(scale):
        raise InputMismatchError("the expected tensors hold NaN or infinity: nothing can be judged against them")
    scale = scale or 1.0  # nothing but zeros is expected: errors count as they are
    places = []
    for index, (got, want) in enumerate(pairs):
        if not want.numel():
            continue
        error = ((got - want).abs() / scale).nan_to_num(nan=math.inf)
        bound = atol + rtol * want.abs() / scale
        place = int((error - bound).argmax())
        where = (index, *(int(i) for i in torch.unravel_index(torch.tensor(place), want.shape)))
        places.append((float(error.flatten()[place]), float(bound.flatten()[place]), where))
    if not places:
        raise InputMismatchError("the tensors have no elements: nothing was compared")
    worst, allowed, where = max(places, key=lambda item: item[0] - item[1])
    passed = worst <= allowed
    reason = "" if passed else f"error {worst:.3g} of max |expected| at {where}, allowed {allowed:.3g}"
    return Closeness(passed, worst, allowed, where, reason)


def assert_close_three_way(baseline: Tensors, expected: Tensors, actual: Tensors) -> ThreeWayCloseness:
    """Raise AssertionError unless `actual` is as close to `baseline` as the target's dtype lets it be.

    `baseline`: FP32 outputs; `expected`: the reference in the target's dtype; `actual`: the target. Passes when
    `(BC >= 0.99 or sigma_ratio <= 1.0) and worst linf_ratio < 5 and worst l2_ratio < 3` (bounds in `limits.toml`).
    Lists aggregate: sigma ratio and BC over all elements, ratios of the worst tensor. NaN in `actual` always fails.
    Raises InputMismatchError for shapes that differ or a baseline that is not finite.
    """
    result = closeness_three_way(baseline, expected, actual)
    if not result.passed:
        raise AssertionError(result.reason)
    return result


def closeness_three_way(
    baseline: Tensors, expected: Tensors, actual: Tensors, *, bounds: ModuleLimits | None = None
) -> ThreeWayCloseness:
    """As `assert_close_three_way`, without raising for a difference; by other `bounds` where they are given."""
    bounds = bounds or limits()
    bits = mantissa_bits(expected)
    triples = [(f, b, t) for (t, f), (b, _) in zip(_pairs(actual, baseline), _pairs(expected, baseline), strict=True)]
    if not all(bool(torch.isfinite(f).all() and torch.isfinite(b).all()) for f, b, _ in triples):
        raise InputMismatchError("baseline or expected hold NaN or infinity: nothing can be judged against them")
    broken = next((i for i, (_, _, t) in enumerate(triples) if not bool(torch.isfinite(t).all())), None)
    if broken is not None:
        nan = math.nan
        return ThreeWayCloseness(False, nan, nan, nan, nan, reason=f"tensor {broken} holds NaN or infinity")
    target = torch.cat([(t - f).flatten() for f, _, t in triples])
    base = torch.cat([(b - f).flatten() for f, b, _ in triples])
    reference = torch.cat([f.flatten() for f, _, _ in triples])
    floor = l2_floor(reference.norm(), bits)
    sigma = float(error_ratio(target.norm(), base.norm(), floor))
    bc = float(bhattacharyya(histogram(base[None]), histogram(target[None]), min_samples=bounds.bc_min_samples))
    linf, l2 = (max(_ratios(*triple, bits)[i] for triple in triples) for i in (0, 1))
    noise = float(base.norm() or floor) / math.sqrt(max(len(base), 1))
    lean = float((reference.sign() * (target - base)).mean()) / noise if noise else 0.0
    return _judge(sigma, bc, linf, l2, lean, bounds)


def _judge(sigma: float, bc: float, linf: float, l2: float, lean: float, bounds: ModuleLimits) -> ThreeWayCloseness:
    problems = []
    if not (bc >= bounds.bc or sigma <= bounds.sigma_ratio):  # NaN is in neither
        problems.append(f"sigma ratio {sigma:.3g} > {bounds.sigma_ratio:g} and BC {bc:.4f} < {bounds.bc:g}")
    if not linf < bounds.linf_ratio:
        problems.append(f"L-inf ratio {linf:.3g}, allowed below {bounds.linf_ratio:g}")
    if not l2 < bounds.l2_ratio:
        problems.append(f"L2 ratio {l2:.3g}, allowed below {bounds.l2_ratio:g}")
    if problems and lean < -bounds.lean:
        problems.append(f"errors lean towards zero by {-lean:.2f} of the noise: digits are cut off instead of rounded")
    return ThreeWayCloseness(not problems, sigma, bc, linf, l2, lean, "; ".join(problems))


def _ratios(f: torch.Tensor, b: torch.Tensor, t: torch.Tensor, bits: int) -> tuple[float, float]:
    """(L-inf, L2) error of the target over the reference's in its dtype, of one tensor."""
    if not f.numel():
        return 0.0, 0.0
    linf = error_ratio((t - f).abs().max(), (b - f).abs().max(), linf_floor(f.abs().max(), bits))
    l2 = error_ratio((t - f).norm(), (b - f).norm(), l2_floor(f.norm(), bits))
    return float(linf), float(l2)


def mantissa_bits(expected: Tensors) -> int:
    """Mantissa bits of the expected side's own dtype; of bfloat16 where it came as float32."""
    first = expected if isinstance(expected, torch.Tensor) else expected[0]
    return _MANTISSA.get(first.dtype, _MANTISSA[torch.bfloat16])


_MANTISSA = {torch.bfloat16: 7, torch.float16: 10}


def _pairs(first: Tensors, second: Tensors) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Both sides as lists of float64 tensors of equal shapes."""
    left = [first] if isinstance(first, torch.Tensor) else list(first)
    right = [second] if isinstance(second, torch.Tensor) else list(second)
    if not left or len(left) != len(right):
        raise InputMismatchError(f"{len(left)} and {len(right)} tensors cannot be compared one by one")
    for index, (a, b) in enumerate(zip(left, right, strict=True)):
        if a.shape != b.shape:
            raise InputMismatchError(f"tensor {index}: shapes {tuple(a.shape)} and {tuple(b.shape)} differ")
    return [(a.double(), b.double()) for a, b in zip(left, right, strict=True)]
