"""Faults put into made-up caches: seen, placed, and recognised. Clean caches pass."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from accuracy_core.capture.kv import KvSides, LayerKv, compare_kv_caches
from accuracy_core.errors import ConfigurationError
from accuracy_core.numerics import default_tolerances
from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.schemas import KvPattern, KvResult, Phase

from .made_caches import HEADS, POSITIONS, PROMPT, WIDTH, layers

BLOCK = 16


def compare(made, **options) -> KvResult:
    return compare_kv_caches(made, prompt_length=PROMPT, block_size=options.pop("block_size", BLOCK), **options)


def at_layer(number, change, which="both"):
    def fault(layer, side, target, fp32):
        if layer == number and which in ("both", side):
            change(target, fp32)

    return fault


def _noise(target, rows, size):
    g = torch.Generator().manual_seed(7)
    target[rows] += size * torch.randn(target[rows].shape, generator=g)


def shifted(target, _):
    """Decode writes one slot further; its first slot is never written."""
    target[:, PROMPT + 1 :] = target[:, PROMPT:-1].clone()
    target[:, PROMPT] = 0


def one_slot(target, _):
    target[:, 11] = target[:, 12]


def wrong_block(target, _):
    target[:, 2 * BLOCK :] = target[:, : POSITIONS - 2 * BLOCK].clone()


def close_blocks(target, fp32):
    """Blocks of 16 tokens lie 15 apart: the last row of each is overwritten by the first of the next."""
    for block in range(POSITIONS // BLOCK):
        rows = slice(block * BLOCK, (block + 1) * BLOCK)
        start = block * (BLOCK - 1)
        target[:, start : start + BLOCK] = fp32[:, rows].to(target.dtype)


def other_stride(target, _):
    _noise(target, (slice(None), slice(BLOCK, None)), 1.0)


def scaled(target, _):
    target *= 1.5


def head_scaled(target, _):
    target[2] *= 1.04


def swapped(target, _):
    target[[1, 3]] = target[[3, 1]]


def lost_head(target, _):
    _noise(target, 2, 1.0)


def decode_only(target, _):
    _noise(target, (slice(None), slice(PROMPT, None)), 0.3)


def everywhere(target, _):
    _noise(target, slice(None), 0.05)


CASES = [
    (shifted, KvPattern.SHIFTED, Phase.DECODE, PROMPT, True, "written +1 slots away"),
    (one_slot, KvPattern.ONE_SLOT, Phase.PREFILL, 11, True, "position 11 holds 12"),
    (wrong_block, KvPattern.FROM_BLOCK, Phase.DECODE, 2 * BLOCK, True, "block 2 holds block 0"),
    (close_blocks, KvPattern.FROM_BLOCK, Phase.BOTH, BLOCK - 1, True, "blocks lie closer"),
    (other_stride, KvPattern.FROM_BLOCK, Phase.BOTH, BLOCK, True, "from position 16 on"),
    (scaled, KvPattern.SCALE, Phase.BOTH, 0, None, "1.5 times"),
    (head_scaled, KvPattern.SCALE, Phase.BOTH, 0, None, "1.04 times"),
    (swapped, KvPattern.HEADS, Phase.BOTH, 0, None, "head 1 holds head 3, head 3 holds head 1"),
    (lost_head, KvPattern.HEADS, Phase.BOTH, 0, None, "all of head 2"),
    (decode_only, KvPattern.DECODE_ROWS, Phase.DECODE, PROMPT, None, "only rows that decode steps wrote"),
    (everywhere, KvPattern.SPREAD, Phase.BOTH, 0, False, "wrong before it was cached"),
]


@pytest.mark.parametrize(
    ("change", "pattern", "phase", "position", "cache", "says"), CASES, ids=lambda x: getattr(x, "__name__", "")
)
@pytest.mark.parametrize("which", ["both", "key", "value"])
def test_a_fault_is_placed_and_recognised(change, pattern, phase, position, cache, says, which):
    result = compare(layers(3, at_layer(1, change, which)))
    assert result.verdict is Verdict.FAIL
    assert (result.pattern, result.phase, result.cache_fault) == (pattern, phase, cache)
    place = result.first_bad
    assert (place.layer, place.position) == (1, position)
    assert place.which == ("key" if which == "both" else which)
    assert any(says in text for text in result.evidence)
    assert {hit.detail[:7] for hit in result.guards} == {"layer 1"}


@pytest.mark.parametrize("change", [case[0] for case in CASES], ids=lambda x: x.__name__)
def test_what_attention_was_given_tells_the_cache_from_what_came_before(change):
    cache = compare(layers(3, at_layer(1, change), given=True))
    assert cache.cache_fault is True
    assert cache.written is False
    assert "cache_write" in {hit.guard for hit in cache.guards}
    before = [
        LayerKv(x.layer, *(replace(side, given=side.target) for side in (x.key, x.value)))
        for x in layers(3, at_layer(1, change))
    ]
    upstream = compare(before)
    assert upstream.verdict is Verdict.FAIL
    assert upstream.written is True
    assert upstream.cache_fault is (
        change in (shifted, one_slot, wrong_block, close_blocks)
    )  # rows of elsewhere prove it still


def test_clean_caches_pass():
    bad = [seed for seed in range(8) if compare(layers(4, seed=seed)).verdict is not Verdict.PASS]
    assert bad == []


def test_equal_caches_pass():
    made = [LayerKv(0, *(KvSides(s.fp32, s.fp32, s.fp32) for s in (x.key, x.value))) for x in layers(1)]
    result = compare(made)
    assert result.verdict is Verdict.PASS
    assert result.cosine_min == pytest.approx(1.0)


@pytest.mark.parametrize(("head", "position"), [(0, 0), (2, 17), (3, PROMPT), (1, POSITIONS - 1)])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("which", ["key", "value"])
def test_one_value_that_is_not_finite_fails_and_is_named(head, position, value, which):
    def change(target, _):
        target[head, position, 5] = value

    result = compare(layers(3, at_layer(2, change, which)), routed_from=1)
    assert result.verdict is Verdict.FAIL
    assert result.pattern is KvPattern.NONFINITE
    place = result.first_bad
    assert (place.layer, place.head, place.position, place.which) == (2, head, position, which)
    assert result.phase is (Phase.PREFILL if position < PROMPT else Phase.DECODE)
    (hit,) = [hit for hit in result.guards if hit.guard == "non_finite"]
    assert hit.token == (position - PROMPT if position >= PROMPT else -1)


def test_a_whole_head_of_nan_is_named():
    def change(target, _):
        target[3] = math.nan

    result = compare(layers(2, at_layer(1, change, "value")))
    assert (result.first_bad.layer, result.first_bad.head, result.first_bad.position) == (1, 3, 0)
    assert KvResult.from_json(result.to_json()) == result or math.isnan(result.cosine_min)


@pytest.mark.parametrize(
    ("cut", "shape"),
    [
        (lambda t: t[:, :-1], (HEADS, POSITIONS - 1, WIDTH)),
        (lambda t: t[:-1], (HEADS - 1, POSITIONS, WIDTH)),
        (lambda t: t[..., :-2], (HEADS, POSITIONS, WIDTH - 2)),
    ],
    ids=["positions", "heads", "head_dim"],
)
def test_other_shapes_fail_and_name_both(cut, shape):
    made = layers(3)
    made[1] = replace(made[1], value=replace(made[1].value, target=cut(made[1].value.target)))
    result = compare(made)
    assert result.verdict is Verdict.FAIL
    (hit,) = [hit for hit in result.guards if hit.guard == "kv_shape"]
    assert str(shape) in hit.detail
    assert str((HEADS, POSITIONS, WIDTH)) in hit.detail
    assert result.first_bad.layer == 1


def test_other_layer_counts_fail_and_name_both():
    result = compare(layers(2), expected_layers=3)
    assert result.verdict is Verdict.FAIL
    assert "of 2 layers, the reference of 3" in result.guards[0].detail


def test_nothing_compared_is_no_pass():
    result = compare([])
    assert result.verdict is None
    assert result.outcome is Outcome.NOT_MEASURED


def test_copies_of_a_head_that_differ_between_ranks_fail():
    made = [replace(layer, disagreeing=((1, 3),) if layer.layer == 1 else ()) for layer in layers(2)]
    result = compare(made)
    assert result.verdict is Verdict.FAIL
    assert "head 1 on rank 3" in result.guards[0].detail


def test_rows_no_longer_present_are_neither_judged_nor_shown():
    present = torch.arange(POSITIONS) >= 20

    def cut(side):
        return replace(side, target=torch.where(present[:, None], side.target, math.nan), present=present)

    made = [LayerKv(x.layer, cut(x.key), cut(x.value)) for x in layers(2)]
    result = compare(made)
    assert result.verdict is Verdict.PASS
    row = result.position_ratio["key"][0]
    assert all(math.isnan(value) for value in row[:20])
    assert not any(math.isnan(value) for value in row[20:])
    assert not any(math.isnan(item.l2_ratio) for item in result.heads)


def test_behind_a_router_a_jump_is_no_fault_but_a_misplaced_row_is():
    def jump(target, _):
        _noise(target, (slice(None), 9), 0.4)

    assert compare(layers(3, at_layer(2, jump))).verdict is Verdict.FAIL
    assert compare(layers(3, at_layer(2, jump)), routed_from=1).verdict is Verdict.PASS
    result = compare(layers(3, at_layer(2, one_slot)), routed_from=1)
    assert (result.verdict, result.cache_fault) == (Verdict.FAIL, True)


def test_equal_tokens_with_equal_values_are_no_misplaced_rows():
    """V of the first layer does not know positions: a wrong token's V is another position's V, its K is not."""
    made = layers(1)
    value = made[0].value.target.clone()
    value[:, 5] = value[:, 9]
    key = made[0].key.target.clone()
    _noise(key, (slice(None), 5), 1.0)
    result = compare([LayerKv(0, replace(made[0].key, target=key), replace(made[0].value, target=value))])
    assert result.verdict is Verdict.FAIL
    assert result.cache_fault is None


def test_a_float32_target_is_judged_by_float32_noise():
    def exact(scale):
        made = []
        for x in layers(2):
            sides = []
            for s in (x.key, x.value):
                g = torch.Generator().manual_seed(3)
                sides.append(KvSides(s.fp32, s.fp32, s.fp32 * (1 + scale * torch.randn(s.fp32.shape, generator=g))))
            made.append(LayerKv(x.layer, *sides))
        return compare(made, dtype="float32")

    assert exact(1e-6).verdict is Verdict.PASS
    assert exact(1e-3).verdict is Verdict.FAIL  # as bfloat16 would err


def test_no_block_size_still_finds_a_boundary():
    result = compare(layers(2, at_layer(0, other_stride)), block_size=None)
    assert result.pattern is KvPattern.FROM_BLOCK


def test_limits_come_from_the_tolerances():
    default = default_tolerances()
    made = layers(2, at_layer(1, head_scaled))
    loose = default.model_copy(update={"extra": {"kv": {"head_ratio": 90.0, "l2_ratio": 90.0, "linf_ratio": 90.0}}})
    assert compare(made, tolerances=loose).verdict is Verdict.PASS
    wrong = default.model_copy(update={"extra": {"kv": {"head_ratio": "high"}}})
    with pytest.raises(ConfigurationError, match=r"extra\.kv"):
        compare(made, tolerances=wrong)
