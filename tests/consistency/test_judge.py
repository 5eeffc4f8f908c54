"""Every gate of the judgement fails on an injected difference, and clean replays pass."""

from __future__ import annotations

import math

import pytest
import torch

from accuracy_core.consistency.judge import Replays, judge_repeat, judge_way
from accuracy_core.consistency.limits import ConsistencyLimits
from accuracy_core.errors import ConfigurationError
from accuracy_core.numerics import default_tolerances
from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.schemas import ConsistencyCheck, ConsistencyKind, ConsistencyResult, Phase

LIMITS = ConsistencyLimits(
    pooled=1.8, prompt=2.0, row=4.0, error_ratio=1.5, relative={"bfloat16": 0.05, "float32": 1e-4}
)
NOISE, VOCAB, TOKENS = 0.01, 400, 6
BATCHING, REPEAT = ConsistencyKind.BATCHING, ConsistencyKind.REPEAT


def noise(seed: int, size: float = NOISE) -> torch.Tensor:
    return size * torch.randn(TOKENS, VOCAB, generator=torch.Generator().manual_seed(seed))


def clean(index: int = 0, **change) -> Replays:
    """FP32, and three equally right computations of it: the reference's, A's and B's."""
    fp32 = noise(100 + index, 1.0)
    a, b = fp32 + noise(200 + index), fp32 + noise(300 + index)
    fields = {"neutral": (a, a.clone()), "under": (b, b.clone()), "fp32": fp32, "expected": fp32 + noise(400 + index)}
    return Replays(**{"index": index, "label": f"p{index}", **fields, **change})


def moved(item: Replays, change) -> Replays:
    """`item` with B changed in place by `change`."""
    b = item.under[0].clone()
    change(b)
    return clean(item.index, under=(b, b.clone()))


def way(*items: Replays, dtype: str = "bfloat16", limits: ConsistencyLimits = LIMITS) -> ConsistencyCheck:
    return judge_way(BATCHING, items, dtype, limits)


def test_equally_right_computations_pass_and_differ_by_root_two_of_the_noise():
    check = way(clean(0), clean(1))
    assert check.verdict is Verdict.PASS
    assert check.pooled == pytest.approx(math.sqrt(2), rel=0.05)
    assert all(rows.pooled == pytest.approx(math.sqrt(2), rel=0.1) for rows in check.prompts)
    assert all(rows.error_ratio == pytest.approx(1, rel=0.1) for rows in check.prompts)
    a = clean(0).neutral[0]
    (same,) = way(clean(0, under=(a, a))).prompts
    assert (same.bit_equal, same.row, same.error_ratio) == (True, 0, 1)
    assert (check.yardstick, check.limits) == ("dtype_noise", LIMITS.model_dump(exclude={"relative"}))
    assert {rows.first_bad_token for rows in check.prompts} == {None}


def test_one_row_that_differs_fails_and_is_named():
    bad = moved(clean(1), lambda b: b[3].add_(noise(7)[3] * 6))
    check = way(clean(0), bad)
    assert check.verdict is Verdict.FAIL
    rows = check.worst
    assert (rows.index, rows.first_bad_token, rows.phase) == (1, 3, Phase.DECODE)
    assert rows.row == pytest.approx(math.sqrt(36 + 2), rel=0.15)
    assert "a row differs by" in " ".join(rows.reasons)
    assert [one.verdict for one in check.prompts] == [Verdict.PASS, Verdict.FAIL]


def test_rows_that_differ_a_little_everywhere_fail_together():
    bad = moved(clean(0), lambda b: b.add_(noise(7) * 2.5))
    (rows,) = way(bad).prompts
    assert rows.row < LIMITS.row
    assert rows.verdict is Verdict.FAIL
    assert "its rows together differ" in " ".join(rows.reasons)


def test_all_prompts_a_little_fail_together_though_none_does_alone():
    near = [moved(clean(i), lambda b: b.add_(noise(7) * 1.25)) for i in (0, 1)]
    loose = LIMITS.model_copy(update={"error_ratio": 3.0})
    check = way(*near, limits=loose)
    assert {rows.verdict for rows in check.prompts} == {Verdict.PASS}
    assert check.verdict is Verdict.FAIL
    assert check.reason.startswith("all rows together differ by 1.")
    assert way(*near, limits=loose.model_copy(update={"pooled": 2.0})).verdict is Verdict.PASS


def test_an_error_that_grows_fails_though_the_difference_is_allowed():
    wide = LIMITS.model_copy(update={"pooled": 100.0, "prompt": 100.0, "row": 100.0})
    bad = moved(clean(0), lambda b: b.add_(noise(7) * 1.6))
    (rows,) = way(bad, limits=wide).prompts
    assert rows.verdict is Verdict.FAIL
    assert rows.error_ratio == pytest.approx(math.sqrt(1 + 1.6**2), rel=0.05)
    assert "error against FP32 grows" in " ".join(rows.reasons)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("token", [0, 4])
def test_what_is_not_finite_never_passes(value, token):
    bad = moved(clean(0), lambda b: b[token, 5].fill_(value))
    (rows,) = way(bad).prompts
    assert rows.verdict is Verdict.FAIL
    assert (rows.first_bad_token, rows.row) == (token, math.inf)
    assert rows.phase is (Phase.DECODE if token else Phase.PREFILL)
    assert "not finite" in " ".join(rows.reasons)


def test_a_lost_row_fails():
    item = clean(0)
    short = item.under[0][:-1]
    (rows,) = way(clean(0, under=(short, short.clone()))).prompts
    assert (rows.verdict, rows.first_bad_token) == (Verdict.FAIL, TOKENS - 1)
    (rows,) = way(clean(0, under=(short[:0], short[:0]))).prompts
    assert (rows.verdict, rows.first_bad_token) == (Verdict.FAIL, 0)


def test_the_worse_of_both_runs_counts():
    b = clean(0).under[0]
    other = b.clone()
    other[2] += noise(7)[2] * 8
    for pair in ((b, other), (other, b)):
        (rows,) = way(clean(0, under=pair)).prompts
        assert (rows.verdict, rows.first_bad_token) == (Verdict.FAIL, 2)


def test_runs_under_the_condition_that_do_not_repeat_fail_it_however_small():
    b = clean(0).under[0]
    other = b.clone()
    other[2, 2] = torch.nextafter(other[2, 2], torch.tensor(math.inf))
    (rows,) = way(clean(0, under=(b, other))).prompts
    assert rows.verdict is Verdict.FAIL
    assert rows.reasons == ["two runs under the condition differ, though two without it are equal"]


def test_an_engine_that_does_not_repeat_itself_is_a_finding_of_its_own():
    a = clean(0).neutral[0]
    other = a.clone()
    other[4, 1] = torch.nextafter(other[4, 1], torch.tensor(math.inf))
    item = clean(0, neutral=(a, other), under=(a, other))
    check = judge_repeat([item], "bfloat16")
    assert (check.kind, check.verdict, check.worst.first_bad_token) == (REPEAT, Verdict.FAIL, 4)
    assert "asked again the same way" in check.worst.reasons[0]
    assert judge_repeat([clean(0), clean(1)], "bfloat16").verdict is Verdict.PASS
    assert way(item).verdict is Verdict.PASS  # as little as that says nothing against batching


@pytest.mark.parametrize("change", [lambda a: a.add_(noise(7) * 6), lambda a: a[2].fill_(math.nan)])
def test_nothing_is_said_of_a_way_when_the_engine_differs_from_itself_as_much(change):
    a = clean(0).neutral[0]
    other = a.clone()
    change(other)
    item = clean(0, neutral=(a, other))
    check = way(clean(1), item)
    assert (check.verdict, check.prompts) == (None, [])
    assert "without it the engine's rows" in check.reason
    assert judge_repeat([clean(1), item], "bfloat16").verdict is Verdict.FAIL


def test_rows_that_are_not_finite_twice_fail_repeating():
    a = clean(0).neutral[0].clone()
    a[1, 1] = math.nan
    check = judge_repeat([clean(0, neutral=(a, a))], "bfloat16")
    assert (check.verdict, check.worst.first_bad_token) == (Verdict.FAIL, 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_without_references_or_noise_the_logits_themselves_are_the_measure(dtype):
    references = {} if dtype == "float32" else {"fp32": None, "expected": None}
    a = clean(0).neutral[0]

    def check(size: float) -> ConsistencyCheck:
        b = a + size * noise(9, 1.0)
        return way(clean(0, under=(b, b.clone()), **references), dtype=dtype)

    limit = LIMITS.relative[dtype]
    good, bad = check(limit / 2), check(limit * 2)
    assert (good.verdict, bad.verdict, good.yardstick) == (Verdict.PASS, Verdict.FAIL, "logits")
    assert bad.worst.row == pytest.approx(2 * limit, rel=0.2)
    assert math.isnan(bad.worst.error_ratio)


def test_a_row_whose_noise_cancels_by_accident_is_measured_by_the_usual_noise():
    item = clean(0)
    expected = item.expected.clone()
    expected[2] = item.fp32[2]
    check = way(clean(0, expected=expected))
    assert check.verdict is Verdict.PASS
    assert check.prompts[0].row < 2


def test_no_prompt_is_not_measured():
    assert way().verdict is None
    assert judge_repeat([], "bfloat16").verdict is None


def test_verdict_over_all_checks():
    def over(**verdicts: Verdict | None) -> ConsistencyResult:
        checks = [ConsistencyCheck(kind=ConsistencyKind(kind), verdict=verdict) for kind, verdict in verdicts.items()]
        return ConsistencyResult(target="vllm", dtype="bfloat16", output_length=1, prefill_chunk=1, checks=checks)

    result = over(repeat=Verdict.PASS, batching=Verdict.PASS, chunked_prefill=None)
    assert (result.verdict, result.outcome) == (Verdict.PASS, Outcome.NUMERICS)
    assert [check.kind for check in result.unmeasured] == [ConsistencyKind.CHUNKED_PREFILL]
    assert over(repeat=Verdict.PASS, batching=Verdict.FAIL).verdict is Verdict.FAIL
    assert over(repeat=Verdict.FAIL, batching=None).verdict is Verdict.FAIL
    alone = over(repeat=Verdict.PASS, batching=None)
    assert (alone.verdict, alone.outcome) == (None, Outcome.NOT_MEASURED)


def test_limits_are_data_with_provenance_and_a_calibration_may_replace_them():
    default = default_tolerances()
    shipped = ConsistencyLimits.of(default)
    assert shipped == ConsistencyLimits.of(None)
    names = {f"extra.consistency.{name}" for name in ConsistencyLimits.model_fields}
    assert names <= set(default.provenance)
    own = default.model_copy(update={"extra": {"consistency": {"row": 9.0}}})
    assert ConsistencyLimits.of(own) == shipped.model_copy(update={"row": 9.0})
    with pytest.raises(ConfigurationError, match=r"extra\.consistency"):
        ConsistencyLimits.of(default.model_copy(update={"extra": {"consistency": {"row": -1}}}))
