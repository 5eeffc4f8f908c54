"""What must hold for any logits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accuracy_core.logits import MultiPromptValidationResult, compare_prompts
from accuracy_core.outcome import Verdict

SETTINGS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
SEVERITY = {Verdict.PASS: 0, Verdict.SUSPECT: 1, Verdict.FAIL: 2}


@dataclass(frozen=True)
class Logits:
    f: list[torch.Tensor]
    e: list[torch.Tensor]
    t: list[torch.Tensor]

    def compare(self, **options: Any) -> MultiPromptValidationResult:
        return compare_prompts(self.f, self.e, self.t, **options)


@st.composite
def logits(draw: st.DrawFn, faults: tuple[str, ...] = ("none", "scaled", "noisy", "row", "nan", "mask")) -> Logits:
    """Small runs in float64, clean or with something wrong."""
    prompts, tokens, batch = draw(st.integers(1, 4)), draw(st.integers(1, 5)), draw(st.integers(1, 2))
    vocab = draw(st.sampled_from([2, 7, 64, 700]))
    std = draw(st.sampled_from([1e-3, 0.02, 0.3]))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    shape = (prompts, tokens, batch, vocab)
    f = torch.randn(shape, generator=g, dtype=torch.float64) * 3
    e = f + torch.randn(shape, generator=g, dtype=torch.float64) * std
    t = f + torch.randn(shape, generator=g, dtype=torch.float64) * std
    fault = draw(st.sampled_from(faults))
    p, k, b, v = (draw(st.integers(0, n - 1)) for n in shape)
    if fault == "scaled":
        t = t * 1.1
    elif fault == "noisy":
        t = f + (t - f) * 4
    elif fault == "row":
        t[p, k, b] = f[p, k, b] + (t - f)[p, k, b] * 10
    elif fault == "nan":
        t[p, k, b, v] = math.nan
    elif fault == "mask":
        t[p, k, b, v] = -math.inf
    return Logits(list(f), list(e), list(t))


def close(a: MultiPromptValidationResult, b: MultiPromptValidationResult, rel: float = 1e-6) -> None:
    """Same verdict, same guards in number, same figures."""
    assert a.verdict == b.verdict
    assert sorted(h.guard for h in a.guards) == sorted(h.guard for h in b.guards)
    assert [r.passed for r in a.routes] == [r.passed for r in b.routes]
    for name, value in a.aggregates.items():
        other = b.aggregates[name]
        assert other == pytest.approx(value, rel=rel, abs=1e-9, nan_ok=True), name


@SETTINGS
@given(logits(), st.randoms(use_true_random=False))
def test_order_of_prompts_does_not_matter(x: Logits, random: Any) -> None:
    order = list(range(len(x.f)))
    random.shuffle(order)
    close(x.compare(), Logits(*([side[i] for i in order] for side in (x.f, x.e, x.t))).compare())


@SETTINGS
@given(logits(), st.randoms(use_true_random=False))
def test_order_of_tokens_and_batch_rows_changes_no_verdict(x: Logits, random: Any) -> None:
    tokens, batch = list(range(x.f[0].shape[0])), list(range(x.f[0].shape[1]))
    random.shuffle(tokens)
    random.shuffle(batch)
    moved = Logits(*([p[tokens][:, batch] for p in side] for side in (x.f, x.e, x.t))).compare()
    before = x.compare()
    assert moved.verdict == before.verdict
    assert [r.passed for r in moved.routes] == [r.passed for r in before.routes]
    assert len(moved.guards) == len(before.guards)


@SETTINGS
@given(logits(), st.floats(-50, 50))
def test_constant_offset_changes_nothing(x: Logits, offset: float) -> None:
    before, after = x.compare(), Logits(x.f, x.e, [p + offset for p in x.t]).compare()
    assert after.verdict == before.verdict
    assert sorted((h.guard, h.prompt, h.token) for h in after.guards) == sorted(
        (h.guard, h.prompt, h.token) for h in before.guards
    )
    for a, b in zip(before.rows, after.rows, strict=True):
        assert a.two_way_passed == b.two_way_passed
        for name in ("linf", "l2", "linf_ratio", "l2_ratio", "kl", "slope"):
            assert getattr(b, name) == pytest.approx(getattr(a, name), rel=1e-6, abs=1e-9), name


@SETTINGS
@given(logits(), st.integers(1, 7))
def test_chunk_size_changes_nothing(x: Logits, rows: int) -> None:
    whole, chunked = x.compare(chunk_rows=10_000), x.compare(chunk_rows=rows)
    close(whole, chunked)
    for a, b in zip(whole.rows, chunked.rows, strict=True):
        assert (a.prompt, a.batch, a.token, a.target_id) == (b.prompt, b.batch, b.token, b.target_id)
        assert b.l2_ratio == pytest.approx(a.l2_ratio, rel=1e-9)


@SETTINGS
@given(logits(), st.data(), st.sampled_from([0.5, 5.0, 1e3, math.nan, math.inf, -math.inf]))
def test_making_one_row_worse_never_turns_a_failure_into_a_pass(x: Logits, data: st.DataObject, push: float) -> None:
    """Worse: one logit is pushed further away from both references."""
    p = data.draw(st.integers(0, len(x.t) - 1))
    tokens, batch, _ = x.t[p].shape
    k, b = data.draw(st.integers(0, tokens - 1)), data.draw(st.integers(0, batch - 1))
    row = x.t[p][k, b]
    from_f, from_e = row - x.f[p][k, b], row - x.e[p][k, b]
    both = ((from_f.sign() == from_e.sign()) & from_f.isfinite()).nonzero().flatten().tolist()
    if not both:
        return
    v = data.draw(st.sampled_from(both))
    worse = [side.clone() for side in x.t]
    worse[p][k, b, v] += push * float(from_f[v].sign()) if math.isfinite(push) else push
    before, after = x.compare(), Logits(x.f, x.e, worse).compare()
    if before.verdict is not Verdict.PASS:
        assert after.verdict is not Verdict.PASS
    if not math.isfinite(push):
        assert not after.passed


@SETTINGS
@given(logits(faults=("none",)))
def test_a_target_equal_to_fp32_passes(x: Logits) -> None:
    result = Logits(x.f, x.e, x.f).compare()
    assert result.passed
    assert not result.guards


@SETTINGS
@given(logits(), st.sampled_from(["guarded", "documented"]))
def test_verdicts_follow_from_routes_and_guards(x: Logits, rescue: str) -> None:
    result = x.compare(rescue=rescue)
    documented = any(r.passed is True for r in result.routes)
    want = Verdict.FAIL if not documented else Verdict.SUSPECT if result.guards else Verdict.PASS
    if rescue == "documented" and documented:
        want = Verdict.PASS
    assert result.verdict is want
    worst = max(SEVERITY[p.verdict] for p in result.per_prompt)
    assert SEVERITY[result.verdict] <= max(worst, SEVERITY[Verdict.FAIL] if not documented else 0)


@SETTINGS
@given(logits())
def test_inputs_are_left_alone_and_results_are_plain(x: Logits) -> None:
    before = [[p.clone() for p in side] for side in (x.f, x.e, x.t)]
    result = x.compare()
    for old, new in zip(before, (x.f, x.e, x.t), strict=True):
        assert all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(old, new, strict=True))
    for row in result.rows:
        copy = type(row).model_validate_json(row.model_dump_json())
        assert repr(copy.model_dump()) == repr(row.model_dump())
        for value in row.model_dump().values():
            assert type(value) in (int, float, bool, str, list, dict)
    assert all(type(v) in (int, float, str) for v in result.aggregate_metrics.values())
