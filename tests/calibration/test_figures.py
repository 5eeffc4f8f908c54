"""Figures of calibration against numbers worked out by hand or known from theory."""

from __future__ import annotations

import math

import pytest
import torch

from accuracy_core.calibration.output_floor import ULP_BF16, measure_floor, predicted_floor
from accuracy_core.calibration.quantisation import dequantise, quantise
from accuracy_core.calibration.relative_error import error_table, per_seed_errors, relative_error, top1_agreement
from accuracy_core.calibration.seed_stability import seed_stability
from accuracy_core.calibration.span_audit import representable, span_audit
from accuracy_core.calibration.tolerance import discrimination, margin, tolerance
from accuracy_core.errors import ConfigurationError, InputMismatchError

NAN = math.nan


def rows(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_relative_error_by_hand():
    want, got = rows([3.0, 4.0]), rows([3.0, 4.5])
    assert relative_error(got, want) == pytest.approx(0.5 / 5)
    assert relative_error(got, want, top=1) == pytest.approx(0.5 / 4)
    assert relative_error(rows([3.3, 4.0]), want, top=1) == 0
    assert set(error_table(got, want)) == {"10", "50", "1000", "all"}
    assert per_seed_errors([got, want], [want, want]) == [pytest.approx(0.1), 0.0]


def test_exact_is_zero_and_broken_is_infinite():
    zero = rows([0.0, 0.0])
    assert relative_error(zero, zero) == 0
    assert relative_error(rows([1.0, 0.0]), zero) == math.inf
    assert relative_error(rows([NAN, 1.0]), rows([1.0, 1.0])) == math.inf
    with pytest.raises(InputMismatchError, match="NaN"):
        relative_error(zero, rows([NAN, 1.0]))
    with pytest.raises(InputMismatchError, match=r"\(1, 2\) and \(1, 3\)"):
        relative_error(zero, rows([1.0, 1.0, 1.0]))


def test_top1_agreement():
    assert top1_agreement(rows([1, 2], [2, 1]), rows([0, 9], [0, 9])) == 0.5


def test_tolerance_is_twice_the_combined_error_of_the_worst_variant():
    assert tolerance(0.014, {"a": 0.010, "b": 0.016}) == pytest.approx(2 * math.sqrt(0.014**2 + 0.016**2))
    assert tolerance(0.0, {"a": 0.016}) == pytest.approx(0.032)
    with pytest.raises(ConfigurationError, match="no variant"):
        tolerance(0.0, {})
    with pytest.raises(ConfigurationError, match="no tolerance"):
        tolerance(0.0, {"a": NAN})
    assert discrimination(1.4, 0.05) == pytest.approx(28)
    assert (margin(0.031, 0.05), margin(0.0, 0.05)) == (pytest.approx(1.61, abs=0.01), math.inf)


@pytest.mark.parametrize("delta", [1e-6, 1e-5, 1e-4, 1e-3])
def test_the_output_floor_is_predicted_within_a_factor_of_two(delta):
    found = measure_floor(delta)
    assert found.delta == pytest.approx(delta, rel=0.05)
    assert 0.5 < found.measured / found.predicted < 2
    assert predicted_floor(delta) == pytest.approx(math.sqrt(delta * ULP_BF16))


def test_two_roundings_of_the_same_numbers_do_not_differ():
    assert measure_floor(0.0).measured == 0


def test_a_gaussian_tensor_is_healthy():
    found = span_audit(torch.randn(128 * 400, generator=torch.Generator().manual_seed(0)))
    # largest of 128 normal numbers: expectation 2.6 for one side, about 2.8 for the absolute value
    assert 2.5 < found.absmax_over_rms < 3.2
    # energy beyond the 99.9 % quantile of |x| (3.29): 2 (q phi(q) + 1 - Phi(q)) = .0127
    assert found.energy_top == pytest.approx(0.0127, rel=0.1)
    assert found.problems == []
    assert found.underflow == 0


def test_a_tensor_of_a_handful_of_elements_is_flagged():
    tensor = torch.randn(128 * 100, generator=torch.Generator().manual_seed(0))
    tensor[::2000] = 300.0
    found = span_audit(tensor)
    assert found.energy_top > 0.9
    assert found.largest_share > 0.9
    assert len(found.problems) == 2


def test_underflow_is_counted():
    tensor = torch.ones(1000)
    tensor[:3] = 1e-39
    tensor[3] = 0.0
    assert span_audit(tensor).underflow == 3
    with pytest.raises(ConfigurationError, match="NaN"):
        span_audit(torch.tensor([NAN]))


def adamw_updates(least_code: int) -> torch.Tensor:
    """Steps of an optimizer whose second moment is stored as 8-bit codes from `least_code` on: where the code is 0 and
    the gradient next to nothing, the denominator collapses."""
    draw = torch.Generator().manual_seed(3)
    moment = torch.randint(least_code, 256, (200_000,), generator=draw) / 255
    gradient, momentum = (torch.randn(200_000, generator=draw) for _ in range(2))
    return momentum / ((0.999 * moment + 0.001 * gradient.square()).sqrt() + 1e-8)


def test_an_underflowing_second_moment_is_flagged_by_the_energy_rule():
    found = span_audit(adamw_updates(0))
    assert found.largest_share > 0.3
    assert any("8 of 200000 elements carry" in problem for problem in found.problems)
    healed = span_audit(adamw_updates(1))
    assert healed.problems == []
    assert healed.largest_share < 0.05


def test_scales_that_can_be_written_down():
    assert representable(torch.tensor(0.03125))
    assert not representable(torch.tensor(0.0314))
    assert representable(torch.tensor(0.0314).to(torch.bfloat16).float())
    assert not representable(torch.tensor(1.0 + 2**-9))  # exact in float16 only


def test_a_scale_that_rounds_is_a_lottery_and_one_that_does_not_is_exact():
    """One scalar scale carried in bfloat16 against float32, over 80 seeds: the tolerance's seed spread."""
    weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))

    def errors(generate):
        found = []
        for seed in range(80):
            scale = generate(torch.Generator().manual_seed(seed))
            want, got = weight * scale, weight * scale.to(torch.bfloat16).float()
            found.append(relative_error(got, want))
        return seed_stability(found, allowed=5e-3)

    free = errors(lambda draw: 0.02 + 0.04 * torch.rand((), generator=draw))
    assert free.spread > 20
    assert free.headroom < 2.5
    exact = errors(lambda draw: (0.02 + 0.04 * torch.rand((), generator=draw)).to(torch.bfloat16).float())
    assert (exact.exact, exact.most, exact.spread) == (True, 0.0, 1.0)


def test_seed_stability_by_hand():
    found = seed_stability([1.0] * 20 + [2.0] * 10, allowed=4.0)
    assert (found.spread, found.headroom, found.most_of_first, found.tail_grows) == (2.0, 2.0, 1.0, True)
    assert not seed_stability([1.0] * 30, allowed=4.0).tail_grows
    with pytest.raises(ConfigurationError, match="19 seeds are too few"):
        seed_stability([1.0] * 19, allowed=1.0)


def test_e4m3_errs_by_at_most_a_sixteenth_of_what_is_stored():
    weight = torch.randn(32, 256, generator=torch.Generator().manual_seed(1))
    narrow, scale = quantise(weight)
    assert (narrow.dtype, scale.shape) == (torch.float8_e4m3fn, (32, 1))
    error = (dequantise(narrow, scale) - weight).abs()
    normal = weight.abs() > scale * 2**-6  # smallest normal number of e4m3
    assert bool((error[normal] <= weight.abs()[normal] / 16 * 1.0001).all())
    # rounding to 3 mantissa bits: between 1/(16 sqrt 12) and 1/(8 sqrt 12) of the value
    assert 0.018 < relative_error(dequantise(narrow, scale), weight) < 0.036
