from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from accuracy_core.logits import compare_prompts
from accuracy_core.numerics import DEFAULT_TOLERANCE_MAP

from .float64_rows import row
from .shared_cases import load

make = load("make_cases")

SHAPES = [(2, 3, 1, 40), (1, 4, 2, 300), (2, 2, 1, 5_003), (1, 2, 1, 40_000)]


def sides(prompts: int, tokens: int, batch: int, vocab: int, std: float, offset: float) -> list[list[torch.Tensor]]:
    f = make.base(11, prompts, tokens * batch, vocab).view(prompts, tokens, batch, vocab)
    g = torch.Generator().manual_seed(5)
    e = f + torch.randn(f.shape, generator=g) * std
    t = f + torch.randn(f.shape, generator=g) * std * 1.3 + offset
    return [list(x) for x in (f, e, t)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("std", "offset"), [(0.02, 0.0), (0.3, 2.5)])
def test_every_row_metric_agrees_with_a_float64_reference(
    shape: tuple[int, int, int, int], std: float, offset: float
) -> None:
    f, e, t = sides(*shape, std, offset)
    result = compare_prompts(f, e, t)
    assert len(result.rows) == shape[0] * shape[1] * shape[2]
    for r in result.rows:
        want = row(*(x[r.prompt][r.token, r.batch].numpy() for x in (f, e, t)), DEFAULT_TOLERANCE_MAP)
        got = {f"top{k}": v for k, v in r.topk_error.items()} | {
            "gap": r.divergence_gap, "linf": r.linf, "base_linf": r.base_linf, "l2": r.l2, "base_l2": r.base_l2,
            "linf_ratio": r.linf_ratio, "l2_ratio": r.l2_ratio, "slope": r.slope, "overlap": r.top5_overlap,
        }  # fmt: skip
        for name, value in got.items():
            assert value == pytest.approx(want[name], rel=3e-4, abs=1e-6), name
        assert r.shift == pytest.approx(want["shift"], abs=3e-5)
        assert r.bias == pytest.approx(want["bias"], abs=2e-6)
        assert r.kl == pytest.approx(want["kl"], rel=1e-3, abs=1e-7)
        assert (r.two_way_passed, r.top1_agree) == (want["two_way"], want["top1"])
        if r.diverged:
            assert r.divergence_limit == want["gap_limit"]


@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_two_way_mode_compares_with_the_expected_logits(shape: tuple[int, int, int, int]) -> None:
    _, e, t = sides(*shape, 0.3, 2.5)
    result = compare_prompts(None, e, t)
    for r in result.rows:
        want = row(*(x[r.prompt][r.token, r.batch].numpy() for x in (e, e, t)), DEFAULT_TOLERANCE_MAP)
        assert r.topk_error == pytest.approx({k: want[f"top{k}"] for k in DEFAULT_TOLERANCE_MAP}, rel=3e-4)
        assert r.l2 == pytest.approx(want["l2"], rel=3e-4)
        assert r.two_way_passed == want["two_way"]
        assert math.isnan(r.l2_ratio)
    assert [x.passed for x in result.routes[1:]] == [None, None]
    assert result.verdict == ("pass" if all(r.two_way_passed for r in result.rows) else "fail")


def test_sigma_ratio_pools_squares_over_everything() -> None:
    f, e, t = sides(2, 3, 2, 700, 0.05, 1.0)
    result = compare_prompts(f, e, t)
    rows = [
        row(*(x[p][k, b].numpy() for x in (f, e, t)), DEFAULT_TOLERANCE_MAP)
        for p in range(2) for k in range(3) for b in range(2)
    ]  # fmt: skip
    want = math.sqrt(sum(r["target_sq"] for r in rows) / sum(r["base_sq"] for r in rows))
    assert result.aggregate_metrics["sigma_ratio"] == pytest.approx(want, rel=1e-4)
    assert want == pytest.approx(1.3, rel=0.05)
    assert result.aggregate_metrics["bias"] == pytest.approx(np.mean([r["bias"] for r in rows]), abs=1e-5)
    low, high = (result.aggregate_metrics[f"sigma_ratio_{end}"] for end in ("low", "high"))
    assert low <= want <= high


def test_float64_logits_are_computed_in_float64() -> None:
    f, e, t = sides(1, 2, 1, 400, 1e-9, 0.0)
    f, e, t = ([x.double() for x in side] for side in (f, e, t))
    noise = torch.randn(2, 1, 400, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 1e-9
    result = compare_prompts(f, [f[0] + noise], [f[0] + 2 * noise])
    # below float32's resolution: in float32 both errors would be 0 or a rounding step
    assert result.aggregate_metrics["sigma_ratio"] == pytest.approx(2.0, rel=1e-4)
