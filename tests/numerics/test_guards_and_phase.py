"""Each guard fires on its fault, and only there; groups of rows show what single rows do not; the phase is right."""

from __future__ import annotations

import math

import pytest
import torch

from accuracy_core.logits import MultiPromptValidationResult, compare_prompts
from accuracy_core.numerics import default_tolerances, locate
from accuracy_core.numerics.pooled import pooled_limit, typical_ratio
from accuracy_core.outcome import Verdict
from accuracy_core.schemas import GuardHit, Phase, RowMetrics, Tolerances

V = 2000


def sides(
    prompts: int = 4, tokens: int = 8, std: float = 0.05, seed: int = 0, vocab: int = V
) -> tuple[torch.Tensor, ...]:
    """f, e, t as (prompts, tokens, 1, vocab), unrounded; the winner leads by 2."""
    g = torch.Generator().manual_seed(seed)
    shape = (prompts, tokens, 1, vocab)
    f = torch.randn(shape, generator=g) * 2 - 4
    top = f.argmax(-1, keepdim=True)
    f.scatter_(-1, top, f.gather(-1, top) + 2)
    return f, f + torch.randn(shape, generator=g) * std, f + torch.randn(shape, generator=g) * std


def compare(f: torch.Tensor, e: torch.Tensor, t: torch.Tensor, **options: object) -> MultiPromptValidationResult:
    return compare_prompts(list(f), list(e), list(t), **options)


def guards(result: MultiPromptValidationResult) -> set[str]:
    return {h.guard for h in result.guards}


def test_clean_fires_nothing() -> None:
    result = compare(*sides())
    assert result.verdict is Verdict.PASS
    assert result.guards == []
    assert (result.phase, result.first_bad_token) == (Phase.NONE, None)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite(value: float) -> None:
    f, e, t = sides()
    t[1, 2, 0, 9] = value
    result = compare(f, e, t)
    assert [(h.prompt, h.token) for h in result.guards if h.guard == "non_finite"] == [(1, 2)]
    assert result.verdict is Verdict.FAIL
    assert result.worst_guard.guard == "non_finite"


@pytest.mark.parametrize("side", ["target", "reference"])
def test_masks_that_differ(side: str) -> None:
    f, e, t = sides()
    for x in (t,) if side == "target" else (f, e):
        x[0, 1, 0, 100:103] = -math.inf
    hits = [h for h in compare(f, e, t).guards if h.guard == "mask_differs"]
    assert [(h.prompt, h.token, h.value) for h in hits] == [(0, 1, 3.0)]


def test_masks_that_agree_are_as_if_the_columns_were_not_there() -> None:
    f, e, t = sides()
    cut = compare(*(x[..., : V - 50] for x in (f, e, t)))
    for x in (f, e, t):
        x[..., V - 50 :] = -math.inf
    masked = compare(f, e, t)
    assert masked.verdict is Verdict.PASS
    for a, b in zip(cut.rows, masked.rows, strict=True):
        assert a.topk_error == pytest.approx(b.topk_error, rel=1e-4)
        for name in ("l2_ratio", "linf_ratio", "kl", "bias", "slope"):
            assert getattr(b, name) == pytest.approx(getattr(a, name), rel=1e-3, abs=1e-7), name


@pytest.mark.parametrize(("factor", "fires"), [(2.5, False), (3.5, True)])
def test_l2_ratio_of_a_single_row(factor: float, fires: bool) -> None:
    f, e, t = sides()
    t[2, 5] = f[2, 5] + (e - f)[2, 5].flip(-1) * factor
    hits = [(h.prompt, h.token) for h in compare(f, e, t).guards if h.guard == "l2_ratio"]
    assert hits == ([(2, 5)] if fires else [])


def test_l2_hit_must_exceed_what_the_baseline_does_elsewhere() -> None:
    """Where one base row is ten times as noisy as the rest, a row at four times its own noise proves nothing."""
    f, e, t = sides()
    e[0, 0] = f[0, 0] + (e - f)[0, 0] * 10
    t[2, 5] = f[2, 5] + (t - f)[2, 5] * 4
    assert "l2_ratio" not in guards(compare(f, e, t))
    t[2, 5] = f[2, 5] + (t - f)[2, 5] * 8
    assert "l2_ratio" in guards(compare(f, e, t))


def test_linf_ratio_sees_a_single_logit() -> None:
    f, e, t = sides()
    row = f[1, 3, 0]
    loser = int(row.topk(800).indices[-1])
    t[1, 3, 0, loser] = row[loser] + 6 * (e - f)[1, 3].abs().max()
    result = compare(f, e, t)
    assert [(h.guard, h.prompt, h.token) for h in result.guards] == [("linf_ratio", 1, 3)]


def test_winner_error_sees_what_the_tail_would_hide() -> None:
    f, e, t = sides()
    top = int(f[0, 6, 0].argmax())
    t[0, 6, 0, top] -= 0.9  # 18 standard deviations at the winner, below 5 times the largest of 2000 errors
    assert guards(compare(f, e, t)) == {"winner_error"}


@pytest.mark.parametrize(("lead", "fires"), [(0.05, False), (2.0, True)])
def test_argmax_flip_is_excused_only_within_noise(lead: float, fires: bool) -> None:
    f, e, t = sides()
    two = f[3, 4, 0].topk(2).indices
    for x, move in ((f, lead), (e, lead), (t, lead)):
        x[3, 4, 0, two[1]] = f[3, 4, 0, two[0]] - move if x is f else x[3, 4, 0, two[0]] - move
    sampled = [t[p].argmax(-1) for p in range(4)]
    sampled[3][4, 0] = two[1]
    result = compare_prompts(list(f), list(e), list(t), sampled)
    assert [(h.guard, h.prompt, h.token) for h in result.guards] == ([("argmax_flip", 3, 4)] if fires else [])


def test_padding_must_not_win_and_is_otherwise_ignored() -> None:
    f, e, t = sides()
    wide = torch.cat([t, torch.full((*t.shape[:3], 64), -40.0)], -1)
    assert compare(f, e, wide).verdict is Verdict.PASS
    assert repr(compare(f, e, wide).rows) == repr(compare(f, e, t).rows)
    wide[1, 0, 0, V + 5] = 40.0
    result = compare(f, e, wide)
    assert "padding_wins" in guards(result)
    assert result.rows[8].target_id == V + 5
    sampled = [t[p].argmax(-1) for p in range(4)]
    sampled[0][2, 0] = V + 1
    tame = torch.cat([t, torch.full((*t.shape[:3], 64), -40.0)], -1)
    assert "padding_wins" in {h.guard for h in compare_prompts(list(f), list(e), list(tame), sampled).guards}


def test_vocab_size_cuts_the_reference_too() -> None:
    f, e, t = sides()
    for x in (f, e, t):
        x[..., V - 10 :] = -20.0  # columns that no tokenizer id stands for
    hot = t.clone()
    hot[0, 0, 0, V - 1] = 50.0  # an id that the tokenizer has not
    assert compare(f, e, t, vocab_size=V - 10).verdict is Verdict.PASS
    assert "padding_wins" in guards(compare(f, e, hot, vocab_size=V - 10))


def test_rounding_to_zero_leans() -> None:
    """Truncated bf16 logits: the two-way limits hold, no single row is out of bounds, the lean shows."""
    f, e, _ = sides(prompts=6, tokens=8, std=0.01)
    exact = f + torch.randn(f.shape, generator=torch.Generator().manual_seed(5)) * 0.01
    truncated = (exact.view(torch.int32) & ~0xFFFF).view(torch.float32)
    result = compare(f, e.bfloat16().float(), truncated)
    assert result.routes[0].passed
    assert result.verdict is Verdict.SUSPECT
    assert "signed_bias" in guards(result)
    assert not {"l2_ratio", "linf_ratio"} & guards(result)
    assert result.aggregate_metrics["lean"] < -0.5
    assert result.aggregate_metrics["bias"] != 0
    rounded = compare(f, e.bfloat16().float(), exact.bfloat16().float())
    assert "signed_bias" not in guards(rounded)
    assert abs(rounded.aggregate_metrics["lean"]) < 0.05


def test_a_constant_has_a_raw_bias_and_no_lean() -> None:
    f, e, t = sides(prompts=6)
    result = compare(f, e, t + 3)
    assert result.aggregate_metrics["bias"] == pytest.approx(float((f.sign() * (t + 3 - f)).mean()), rel=1e-3)
    assert abs(result.aggregate_metrics["lean"]) < 0.05
    assert result.verdict is Verdict.PASS


def test_a_systematic_excess_that_no_row_shows() -> None:
    """1.6 times the noise everywhere, within the static limits: no row reaches 3, all of them together are too many."""
    f, e, t = sides(std=0.016)
    e = f + (e - f) / 1.6
    result = compare(f, e, t)
    assert guards(result) == {"pooled_l2_ratio"}
    assert result.routes[0].passed
    assert result.verdict is Verdict.SUSPECT
    assert result.phase is Phase.BOTH
    assert result.first_bad_token == 0


@pytest.mark.parametrize(("where", "phase"), [("first", Phase.PREFILL), ("later", Phase.DECODE), ("all", Phase.BOTH)])
@pytest.mark.parametrize("factor", [1.8, 20.0])
def test_phase_follows_the_noisy_rows(where: str, phase: Phase, factor: float) -> None:
    f, e, t = sides(prompts=9, tokens=8)
    part = {"first": slice(0, 1), "later": slice(1, None), "all": slice(None)}[where]
    t[:, part] = f[:, part] + (t - f)[:, part] * factor
    result = compare(f, e, t)
    assert result.verdict is not Verdict.PASS
    assert result.phase is phase
    assert result.first_bad_token == (1 if where == "later" else 0)


def test_one_bad_token_is_not_the_prefill() -> None:
    f, e, t = sides()
    t[:, 6] = f[:, 6] + (t - f)[:, 6] * 10
    assert (compare(f, e, t).phase, compare(f, e, t).first_bad_token) == (Phase.DECODE, 6)


def test_two_way_failures_are_located_by_the_static_limits() -> None:
    f, _, t = sides(std=0.005)
    t[:, 3] = f[:, 3] + (t - f)[:, 3] * 100
    result = compare_prompts(None, list(f), list(t))
    assert result.verdict is Verdict.FAIL
    assert (result.phase, result.first_bad_token) == (Phase.DECODE, 3)


def rows(ratios: list[float]) -> list[RowMetrics]:
    return [
        RowMetrics(prompt=0, token=i, topk_error={"5": 0.0}, two_way_passed=True, reference_id=0, expected_id=0,
                   target_id=0, l2_ratio=r)
        for i, r in enumerate(ratios)
    ]  # fmt: skip


def hit(token: int, guard: str = "pooled_l2_ratio") -> GuardHit:
    return GuardHit(guard=guard, prompt=-1, token=token, value=2.0, limit=1.3)


@pytest.mark.parametrize(
    ("ratios", "hits", "want"),
    [
        ([1.0, 1.0, 1.0], [], (Phase.NONE, None)),
        ([1.0, 1.0, 1.0], [hit(3, "missing_tokens")], (Phase.NONE, None)),
        ([1.6] * 9, [hit(-1)], (Phase.BOTH, 0)),
        ([0.9] + [1.6] * 8, [hit(-1)], (Phase.DECODE, 1)),
        ([2.9] + [0.9] * 8, [hit(-1)], (Phase.PREFILL, 0)),
        ([0.9, 0.9, 0.9] + [1.9] * 8, [hit(-1)], (Phase.DECODE, 3)),
        ([0.9] + [20.0] * 8, [hit(5)], (Phase.DECODE, 5)),
        ([2.0] + [20.0] * 8, [hit(5)], (Phase.BOTH, 0)),
        ([5.0], [hit(0)], (Phase.PREFILL, 0)),
    ],
)
def test_location(ratios: list[float], hits: list[GuardHit], want: tuple[Phase, int | None]) -> None:
    place = locate(rows(ratios), hits, default_tolerances())
    assert (place.phase, place.first_bad_token) == want


@pytest.mark.parametrize(
    ("ratios", "want"),
    [
        ([0.9] + [1.2] * 15, (Phase.DECODE, 1)),
        ([1.4] + [1.2] * 15, (Phase.BOTH, 0)),
        ([1.6] + [0.95] * 15, (Phase.PREFILL, 0)),
        ([0.9] * 16, (Phase.NONE, None)),
    ],
)
def test_location_of_a_failure_without_guards(ratios: list[float], want: tuple[Phase, int | None]) -> None:
    place = locate(rows(ratios), [], default_tolerances(), failed=True)
    assert (place.phase, place.first_bad_token) == want


def test_without_ratios_the_static_limits_locate_a_failure() -> None:
    static = [r.model_copy(update={"two_way_passed": r.token != 2}) for r in rows([math.nan] * 4)]
    place = locate(static, [], default_tolerances(), failed=True)
    assert (place.phase, place.first_bad_token) == (Phase.DECODE, 2)
    assert locate(static, [], default_tolerances()).phase is Phase.NONE


def test_pooled_limit_falls_with_rows_and_small_groups_are_left_alone() -> None:
    limits = default_tolerances().guards
    assert pooled_limit(3, limits) == math.inf
    values = [pooled_limit(n, limits) for n in (8, 16, 48, 1000, 10**9)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(1.15, rel=1e-3)
    assert pooled_limit(100, limits.model_copy(update={"pooled_l2_ratio": None})) == math.inf


def test_typical_ratio_is_cut_at_both_ends() -> None:
    ratio = torch.tensor([0.0, 1.0, 100.0, math.inf])
    assert typical_ratio(ratio, 3.0) == pytest.approx((0.25 * 1 * 3 * 3) ** 0.25)
    assert math.isnan(typical_ratio(ratio[:0], 3.0))


def test_limits_come_from_the_tolerances() -> None:
    f, e, t = sides()
    t[2, 5] = f[2, 5] + (t - f)[2, 5] * 3.5
    own = default_tolerances().guards.model_copy(update={"l2_ratio": 4.0})
    loose: Tolerances = default_tolerances().model_copy(update={"guards": own})
    assert "l2_ratio" in guards(compare(f, e, t))
    assert "l2_ratio" not in guards(compare(f, e, t, tolerances=loose))
