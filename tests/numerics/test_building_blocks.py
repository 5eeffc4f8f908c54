"""Formulas against numbers worked out by hand or by scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import special, stats

from accuracy_core.errors import ConfigurationError
from accuracy_core.numerics import ulp
from accuracy_core.numerics.agreement import top_overlap
from accuracy_core.numerics.bootstrap import ratio_interval
from accuracy_core.numerics.kl import kl_divergence
from accuracy_core.numerics.leaders import leaders
from accuracy_core.numerics.norms import error_ratio, l2_floor, linf_floor, relative
from accuracy_core.numerics.precision import mantissa_bits
from accuracy_core.numerics.scratch import Scratch
from accuracy_core.numerics.shift import Difference, between, centre, remove_shift
from accuracy_core.numerics.student import clustered_mean, two_sided_p
from accuracy_core.numerics.tolerance_map import parse_tolerance_map
from accuracy_core.numerics.topk_error import slice_extremes, topk_errors


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("x", "bits", "step"),
    [(1.0, 7, 2**-7), (1.99, 7, 2**-7), (2.0, 7, 2**-6), (-14.2, 7, 2**-4), (14.2, 10, 2**-7), (0.3, 23, 2**-25)],
)
def test_ulp(x: float, bits: int, step: float) -> None:
    assert float(ulp(torch.tensor([x]), bits)) == step


def test_ulp_of_what_is_no_number_or_zero() -> None:
    assert ulp(torch.tensor([0.0, math.inf, math.nan]), 7).tolist() == pytest.approx(
        [0.0, math.nan, math.nan], nan_ok=True
    )


def test_ulp_is_the_distance_to_the_next_bfloat16() -> None:
    x = torch.rand(1000, generator=generator()).mul(30).add(0.01).bfloat16()
    following = (x.view(torch.int16) + 1).view(torch.bfloat16)
    assert torch.equal(ulp(x.float(), 7), (following.double() - x.double()))


def test_mantissa_bits() -> None:
    assert [mantissa_bits(d) for d in ("bfloat16", torch.float16, "float32")] == [7, 10, 23]
    with pytest.raises(ConfigurationError, match="int8"):
        mantissa_bits("int8")


@pytest.mark.parametrize("offset", [0.0, 50.0])
def test_shift_is_the_intercept_of_least_squares(offset: float) -> None:
    ref = torch.randn(3, 4000, generator=generator(1)) * 2 + offset
    x = ref * torch.tensor([[1.0], [1.01], [0.5]]) + torch.tensor([[0.5], [-3.0], [0.0]])
    x += torch.randn(x.shape, generator=generator(2)) * 0.02
    side = remove_shift(ref, (x,), centre(ref, None, Scratch()), None, Scratch())
    for r in range(3):
        design = np.stack([ref[r].double().numpy(), np.ones(4000)], 1)
        slope, intercept = np.linalg.lstsq(design, x[r].double().numpy(), rcond=None)[0]
        assert float(side.excess[0, r]) + 1 == pytest.approx(slope, abs=2e-6 if offset == 0 else 3e-5)
        want = x[r].double().numpy() - ref[r].double().numpy() - intercept
        # at 50 +- 2 float32 has a step of 4e-6, and the intercept lies far outside the data
        assert side.error[0, r].numpy() == pytest.approx(want, abs=2e-5 if offset == 0 else 1e-3)
        assert float(side.square[0, r]) == pytest.approx(float((want**2).sum()), rel=1e-4 if offset == 0 else 1e-2)


def test_shift_against_a_constant_reference_is_the_difference_of_means() -> None:
    ref, x = torch.full((1, 10), 2.0), torch.arange(10.0).view(1, 10)
    side = remove_shift(ref, (x,), centre(ref, None, Scratch()), None, Scratch())
    assert float(side.shift) == 2.5
    assert float(side.excess) == 0.0


@pytest.mark.parametrize("std", [1e-3, 1.0, 50.0])
def test_target_against_expected_needs_no_second_fit(std: float) -> None:
    f = torch.randn(2, 3000, generator=generator(3), dtype=torch.float64) * 3 - 4
    e = f + torch.randn(f.shape, generator=generator(4), dtype=torch.float64) * std + 1.5
    t = f * 1.2 + torch.randn(f.shape, generator=generator(5), dtype=torch.float64) * std - 7
    scratch = Scratch()
    about = centre(f, None, scratch)
    short = between(remove_shift(f, (t, e), about, None, scratch), about, scratch)
    direct = remove_shift(e, (t,), centre(e, None, Scratch()), None, Scratch())
    assert torch.allclose(short.values - short.shift, direct.error[0], rtol=0, atol=1e-9 * max(std, 1))


def errors(e: torch.Tensor, t: torch.Tensor, tol_map: dict[str, tuple[float, float]]) -> list[list[float]]:
    """Top-k errors of two tensors that have no shift."""
    slices = parse_tolerance_map(tol_map)
    found = slice_extremes(e, Difference(t - e, torch.zeros(len(e), 1)), slices, e.amin(-1))
    assert torch.equal(found.top.argmax, e.argmax(-1))
    return topk_errors(found.error, found.size, slices).tolist()


def test_topk_error_by_hand() -> None:
    e = torch.tensor([[10.0, 8.0, -20.0, 1.0]])
    t = torch.tensor([[10.1, 7.5, -20.0, 4.0]])
    got = errors(e, t, {"1": (0.0, 1), "2": (0.1, 1), "99": (0, 1), "all": (1.0, 1)})
    assert got[0] == pytest.approx([0.1 / 10, (0.5 - 0.1) / 10, 3.0 / 20, (3.0 - 1.0) / 20], rel=1e-5)


@pytest.mark.parametrize("keys", [["all"], ["3"], ["7", "all"], ["5", "50", "1000"], ["6", "400", "19999", "20000"]])
def test_slices_of_any_map(keys: list[str]) -> None:
    e = torch.randn(3, 20_000, generator=generator(12)) * 3
    t = e + torch.randn(e.shape, generator=generator(13))
    got = errors(e, t, dict.fromkeys(keys, (0.25, 1.0)))
    for r in range(3):
        order = e[r].argsort(descending=True)
        for i, key in enumerate(keys):
            ids = order if key == "all" else order[: int(key)]
            want = (float((t - e)[r, ids].abs().max()) - 0.25) / float(e[r, ids].abs().max())
            assert got[r][i] == pytest.approx(want, rel=1e-6)


def test_topk_error_of_all_zero_logits() -> None:
    zero = torch.zeros(2, 4)
    got = errors(zero, torch.tensor([[0.0] * 4, [0.5, 0.5, 0.5, 0.5]]), {"2": (1e-5, 0.01), "all": (1e-5, 0.05)})
    assert got == [[0.0, 0.0], [math.inf, math.inf]]


def test_tolerance_map_is_sorted_by_k_and_keeps_its_keys() -> None:
    parsed = parse_tolerance_map({"all": (1, 2), 50: (1e-5, 0.02), "5": [1e-5, 0.011]})
    assert [(s.key, s.k, s.rtol) for s in parsed] == [("5", 5, 0.011), ("50", 50, 0.02), ("all", None, 2.0)]


@pytest.mark.parametrize(("vocab", "k"), [(1, 5), (3, 5), (260, 50), (20_000, 5), (20_003, 1000), (128_256, 1000)])
def test_leaders_are_topk(vocab: int, k: int) -> None:
    x = torch.randn(3, vocab, generator=generator(vocab))
    got, want = leaders(x, k), x.topk(min(k, vocab), -1)
    assert torch.equal(got.values, want.values)
    assert torch.equal(x.gather(-1, got.ids), want.values)
    assert torch.equal(got.argmax, x.argmax(-1))
    assert all(len(set(row)) == len(row) for row in got.ids.tolist())


@pytest.mark.parametrize("vocab", [100, 50_000])
def test_leaders_break_ties_as_argmax_does(vocab: int) -> None:
    x = torch.randn(4, vocab, generator=generator(9)).bfloat16().float()  # bf16 ties often
    x[0] = 0.0
    x[1, [77, 13, 90]] = 50.0
    x[2, -1] = 60.0
    got = leaders(x, 5)
    assert got.argmax.tolist() == x.argmax(-1).tolist()
    assert got.argmax[1] == 13
    assert torch.equal(got.values, x.topk(5, -1).values)
    assert all(len(set(row)) == 5 for row in got.ids.tolist())


@pytest.mark.parametrize("std", [1e-3, 0.1, 3.0, 100.0])
def test_kl_divergence_agrees_with_scipy(std: float) -> None:
    f = torch.randn(4, 900, generator=generator(6), dtype=torch.float32) * 4
    error = torch.randn(f.shape, generator=generator(7)) * std + 0.05
    p, q = (special.softmax(x.double().numpy(), -1) for x in (f, f.double() + error.double()))
    want = special.rel_entr(p, q).sum(-1)
    got = kl_divergence(f, f.amax(-1, keepdim=True), error)
    assert got.tolist() == pytest.approx(want.tolist(), rel=1e-3, abs=2e-7)
    assert kl_divergence(f, f.amax(-1, keepdim=True), torch.full_like(f, 3.0)).tolist() == pytest.approx(
        [0] * 4, abs=1e-6
    )


def test_kl_leaves_masked_columns_out() -> None:
    f = torch.tensor([[1.0, -math.inf, 0.0]])
    error = torch.tensor([[0.0, 0.0, 1.0]])
    p, q = special.softmax([1.0, 0.0]), special.softmax([1.0, 1.0])
    assert float(kl_divergence(f, torch.tensor([[1.0]]), error)) == pytest.approx(
        special.rel_entr(p, q).sum(), rel=1e-5
    )


def test_top_overlap() -> None:
    a, b = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 4]]), torch.tensor([[4, 3, 9, 8], [4, 3, 2, 1]])
    assert top_overlap(a, b).tolist() == [0.5, 1.0]


def test_ratios_and_floors() -> None:
    got = error_ratio(
        torch.tensor([0.2, 0.2, 0.0, 0.2]), torch.tensor([0.1, 0.01, 0.0, 0.0]), torch.tensor([0.02, 0.02, 0, 0])
    )
    assert got.tolist() == pytest.approx([2.0, 10.0, 0.0, math.inf])
    assert relative(torch.tensor([0.0, 1.0]), torch.zeros(2)).tolist() == [0.0, math.inf]
    assert linf_floor(torch.tensor([14.0]), 7).tolist() == [2**-4]
    # bf16 rounding of a wide range of values: the floor is an upper bound of its RMS, and no loose one
    x = torch.randn(1, 100_000, generator=generator(8)) * 5
    error = (x.bfloat16().float() - x).norm()
    floor = float(l2_floor(x.norm(dim=-1), 7))
    assert 0.5 * floor < float(error) < floor


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 8, 15, 60])
def test_student_tail_agrees_with_scipy(degrees: int) -> None:
    for t in (0.0, 0.3, 1.0, 2.5, -4.0, 9.0):
        assert two_sided_p(t, degrees) == pytest.approx(2 * stats.t.sf(abs(t), degrees), rel=1e-6, abs=1e-13)


def test_clustered_mean_is_the_t_test_over_cluster_means() -> None:
    cluster = torch.tensor([0, 0, 0, 3, 3, 1, 1, 1])
    values = torch.tensor([1.0, 2, 3, 5, 7, 0, 1, math.nan], dtype=torch.float64)
    got, want = clustered_mean(values, cluster), stats.ttest_1samp([2.0, 6.0, 0.5], 0)
    assert (got.mean, got.clusters) == (pytest.approx(17 / 6), 3)
    assert (got.t, got.p) == (pytest.approx(want.statistic), pytest.approx(want.pvalue))


def test_clustering_matters() -> None:
    """Rows of one prompt that repeat each other add no certainty."""
    values, cluster = torch.tensor([1.0, 1.1, 1.2]), torch.arange(3)
    once = clustered_mean(values, cluster)
    often = clustered_mean(values.repeat_interleave(50), cluster.repeat_interleave(50))
    assert often.se == pytest.approx(once.se)


def test_clustered_mean_of_too_little() -> None:
    assert math.isnan(clustered_mean(torch.tensor([1.0, 2.0]), torch.tensor([0, 0])).p)
    assert clustered_mean(torch.tensor([math.nan]), torch.tensor([0])).clusters == 0
    assert clustered_mean(torch.zeros(4), torch.arange(4)).p == 1.0
    assert clustered_mean(torch.ones(4), torch.arange(4)).p == 0.0


def test_bootstrap_interval_covers_and_is_symmetric_in_prompts() -> None:
    g = generator(10)
    covered = 0
    for _ in range(200):
        base = torch.rand(30, generator=g, dtype=torch.float64) + 0.5
        target = base * torch.exp(0.4 * torch.randn(30, generator=g, dtype=torch.float64))
        low, high = ratio_interval(target, base)
        covered += low <= math.exp(0.04) <= high  # sqrt(E[exp(.4 z)])
    assert 175 <= covered <= 200
    order = torch.randperm(30, generator=g)
    assert ratio_interval(target[order], base[order]) == (low, high)


def test_bootstrap_of_too_little_is_not_a_number() -> None:
    one = torch.ones(1, dtype=torch.float64)
    assert all(math.isnan(v) for v in ratio_interval(one, one))
    bad = torch.tensor([math.inf, 1.0], dtype=torch.float64)
    assert all(math.isnan(v) for v in ratio_interval(bad, torch.ones(2, dtype=torch.float64)))
