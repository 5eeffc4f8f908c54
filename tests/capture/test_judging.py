"""Errors, limits, verdicts and the first divergent module, on made-up tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from accuracy_core.capture.limits import TensorLimits
from accuracy_core.capture.tensor_error import tensor_error
from accuracy_core.capture.verdict import PromptTensors, first_divergent, judge_prompt
from accuracy_core.errors import ConfigurationError
from accuracy_core.numerics import default_tolerances
from accuracy_core.outcome import Verdict
from accuracy_core.schemas import Phase, TensorCompareResult

_CONFIG = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "hidden_size": 64}
_POSITIONS, _PROMPT = 24, 16
_TAPS = ["model.embed_tokens"] + [
    f"model.layers.{layer}.{name}" if name else f"model.layers.{layer}"
    for layer in range(2)
    for name in ("input_layernorm", "self_attn.query", "self_attn.attn", "self_attn.o_proj", "mlp.down_proj", "")
] + ["model.norm", "lm_head"]  # fmt: skip
_LIMITS = TensorLimits.of()


def _rounded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.bfloat16)


class _Sides:
    """FP32 rows of every tap; both narrow sides are FP32 with noise of two roundings, each its own."""

    def __init__(self) -> None:
        noise = torch.Generator().manual_seed(3)

        def draw() -> torch.Tensor:
            return torch.randn(_POSITIONS, 64, generator=noise)

        def off(exact: torch.Tensor) -> torch.Tensor:
            return _rounded(exact * (1 + 0.002 * torch.randn(exact.shape, generator=noise)))

        self.fp32 = {tap: draw() for tap in _TAPS}
        self.dtype = {tap: off(rows) for tap, rows in self.fp32.items()}
        self.target = {tap: off(rows) for tap, rows in self.fp32.items()}

    def judge(self, **others: Any) -> TensorCompareResult:
        tensors = PromptTensors(
            _PROMPT, self.target, self.fp32, self.dtype, self.fp32, self.dtype, others.pop("available", _TAPS), **others
        )
        return judge_prompt(0, tensors, _CONFIG, torch.bfloat16, _LIMITS)


@pytest.fixture
def sides() -> _Sides:
    return _Sides()


def test_sums_by_hand() -> None:
    f = torch.tensor([[3.0, 4.0, 0.0, 0.0]])
    b = torch.tensor([[3.0, 5.0, 0.0, 0.0]])
    t = torch.tensor([[5.0, 4.0, float("nan"), 1.0]])
    error = tensor_error(f, b, t, heads=2)
    assert error.norm.tolist() == [[25.0, 0.0]]
    assert error.base.tolist() == [[1.0, 0.0]]
    assert error.target.tolist() == [[4.0, 1.0]]
    assert error.cross.tolist() == [[6.0, 0.0]]
    assert error.base_cross.tolist() == [[4.0, 0.0]]
    assert error.nonfinite.tolist() == [[0, 1]]
    assert (error.linf.item(), error.base_linf.item(), error.peak.item()) == (2.0, 1.0, 4.0)


def test_clean_sides_pass_in_both_phases(sides: _Sides) -> None:
    result = sides.judge()
    assert result.verdict is Verdict.PASS
    assert result.first_divergent is None
    assert {row.phase for row in result.modules} == {Phase.PREFILL, Phase.DECODE}
    assert {row.rows for row in result.modules if row.phase is Phase.DECODE} == {_POSITIONS - _PROMPT}
    assert [row.module for row in result.modules[::2]] == _TAPS


@pytest.mark.parametrize("tap", ["model.embed_tokens", "model.layers.1.mlp.down_proj", "lm_head"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_one_value_at_the_last_position_fails_and_is_named(sides: _Sides, tap: str, value: float) -> None:
    sides.target[tap][-1, 7] = value
    result = sides.judge()
    assert result.verdict is Verdict.FAIL
    first = result.first_divergent
    assert first is not None
    assert (first.module, first.position, first.phase) == (tap, _POSITIONS - 1, Phase.DECODE)
    assert "NaN or infinite" in first.evidence


def test_nan_in_one_head_at_one_token_names_head_and_position(sides: _Sides) -> None:
    sides.target["model.layers.0.self_attn.attn"][5, 32:48] = float("nan")  # head 2 of 4
    first = sides.judge().first_divergent
    assert first is not None
    assert (first.module, first.head, first.position) == ("model.layers.0.self_attn.attn", 2, 5)
    assert first.phase is Phase.PREFILL


def test_nan_in_a_whole_module_is_named_although_all_later_ones_are_nan(sides: _Sides) -> None:
    for tap in _TAPS[_TAPS.index("model.layers.1.input_layernorm") :]:
        sides.target[tap].fill_(float("nan"))
    first = sides.judge().first_divergent
    assert first is not None
    assert (first.module, first.phase) == ("model.layers.1.input_layernorm", Phase.BOTH)


def test_one_wrong_head_is_told_from_its_neighbours(sides: _Sides) -> None:
    attn = sides.target["model.layers.1.self_attn.attn"]
    attn[:, 16:32] = _rounded(attn[:, 16:32].float() * 1.1)
    first = sides.judge().first_divergent
    assert first is not None
    assert (first.module, first.head) == ("model.layers.1.self_attn.attn", 1)


def test_one_wrong_position_is_found_among_many(sides: _Sides) -> None:
    rows = sides.target["model.layers.0.self_attn.o_proj"]
    rows[11] = _rounded(rows[11].float() * 1.02)
    first = sides.judge().first_divergent
    assert first is not None
    assert (first.module, first.position, first.phase) == ("model.layers.0.self_attn.o_proj", 11, Phase.PREFILL)


@pytest.mark.parametrize("factor", [1.05, 1.01])
def test_a_scaled_projection_fails_far_above_the_limit(sides: _Sides, factor: float) -> None:
    tap = "model.layers.1.mlp.down_proj"
    sides.target[tap] = _rounded(sides.fp32[tap] * factor)
    first = sides.judge().first_divergent
    assert first is not None
    assert first.module == tap
    assert first.ratio == pytest.approx((factor - 1) / 0.0026, rel=0.2)  # base: two roundings, .0026


def test_bits_cut_off_by_a_norm_are_found(sides: _Sides) -> None:
    tap = "model.layers.0.input_layernorm"
    cut = (sides.fp32[tap].view(torch.int32) & ~0xFFFF).view(torch.float32)
    sides.target[tap] = cut.to(torch.bfloat16)
    first = sides.judge().first_divergent
    assert first is not None
    assert first.module == tap
    assert "share one factor" in first.evidence


def test_bits_cut_off_by_attention_are_a_note(sides: _Sides) -> None:
    tap = "model.layers.0.self_attn.attn"
    cut = (sides.fp32[tap].view(torch.int32) & ~0xFFFF).view(torch.float32)
    sides.target[tap] = cut.to(torch.bfloat16)
    result = sides.judge()
    assert result.verdict is Verdict.PASS
    assert "cut off" in result.notes[0]


@pytest.mark.parametrize(
    ("shape", "text"),
    [((_POSITIONS, 65), "hidden size"), ((_POSITIONS - 1, 64), "sequence length"), ((_POSITIONS, 128), "hidden size")],
)
def test_another_shape_fails_and_names_both(sides: _Sides, shape: tuple[int, int], text: str) -> None:
    tap = "model.layers.1.self_attn.o_proj"
    sides.target[tap] = torch.zeros(shape, dtype=torch.bfloat16)
    result = sides.judge()
    assert result.verdict is Verdict.FAIL
    (row,) = [row for row in result.modules if row.module == tap]
    assert text in row.problem
    assert str(shape) in row.problem
    assert "(24, 64)" in row.problem


def test_another_number_of_layers_fails_first(sides: _Sides) -> None:
    result = sides.judge(wrong={"model.layers": "number of layers differs: target 3, reference 2"})
    assert result.verdict is Verdict.FAIL
    assert result.first_divergent is not None
    assert result.first_divergent.module == "model.layers"


def test_logits_are_asked_for_from_the_prompt_s_last_position_on(sides: _Sides) -> None:
    sides.target["lm_head"] = sides.target["lm_head"][_PROMPT - 1 :].clone()
    sides.target["lm_head"][0] = _rounded(sides.target["lm_head"][0].float() * 1.2)  # token 0: from prefill
    result = sides.judge()
    rows = {row.phase: row.rows for row in result.modules if row.module == "lm_head"}
    assert rows == {Phase.PREFILL: 1, Phase.DECODE: _POSITIONS - _PROMPT}
    assert result.first_divergent is not None
    assert (result.first_divergent.position, result.first_divergent.phase) == (_PROMPT - 1, Phase.PREFILL)
    assert result.guards[0].token == 0


@pytest.mark.parametrize(("gap", "verdict"), [(False, Verdict.PASS), (True, Verdict.SUSPECT)])
def test_a_large_global_error_of_right_modules_is_not_their_fault(sides: _Sides, gap: bool, verdict: Verdict) -> None:
    """A note where every module was looked at; where some were not, one of those may have made it."""
    whole = {tap: rows + 0.1 for tap, rows in sides.fp32.items()}
    available = [*_TAPS, "model.layers.0.self_attn.key"] if gap else _TAPS
    tensors = PromptTensors(_PROMPT, sides.target, whole, whole, sides.fp32, sides.dtype, available)
    result = judge_prompt(0, tensors, _CONFIG, torch.bfloat16, _LIMITS)
    assert result.verdict is verdict
    assert result.first_divergent is None
    assert any("right given its inputs" in note for note in result.notes)


def test_without_a_local_pass_the_documented_limit_decides(sides: _Sides) -> None:
    tap = "model.layers.1.self_attn.query"
    sides.target[tap] = _rounded(sides.fp32[tap] * 1.05)
    tensors = PromptTensors(_PROMPT, sides.target, sides.fp32, sides.dtype, available=_TAPS)
    result = judge_prompt(0, tensors, _CONFIG, torch.bfloat16, _LIMITS, max_l2_ratio=3.0)
    assert result.verdict is Verdict.FAIL
    assert result.first_divergent is not None
    assert (result.first_divergent.module, result.first_divergent.local) == (tap, False)
    assert judge_prompt(0, tensors, _CONFIG, torch.bfloat16, _LIMITS, max_l2_ratio=100.0).verdict is Verdict.PASS


def test_nothing_compared_is_no_pass(sides: _Sides) -> None:
    sides.target.clear()
    assert sides.judge().verdict is None
    assert first_divergent([]) is None


def test_a_gap_before_a_module_loosens_its_limit(sides: _Sides) -> None:
    """An error that a projection alone never shows is within what a kernel before it may add."""
    tap = "model.layers.0.self_attn.o_proj"
    noise = torch.randn(_POSITIONS, 64, generator=torch.Generator().manual_seed(9))
    sides.target[tap] = sides.fp32[tap] + 0.0056 * noise * sides.fp32[tap]
    assert sides.judge().verdict is Verdict.FAIL
    assert sides.judge(available=[*_TAPS, "model.layers.0.self_attn.key"]).verdict is Verdict.PASS


def test_limits_of_a_calibration_replace_single_ones() -> None:
    own = default_tolerances().model_copy(update={"extra": {"tensors": {"norm": 9.0}}})
    assert TensorLimits.of(own).norm == 9.0
    assert TensorLimits.of(own).row == _LIMITS.row
    wrong = own.model_copy(update={"extra": {"tensors": {"nrom": 9.0}}})
    with pytest.raises(ConfigurationError, match="nrom"):
        TensorLimits.of(wrong)


def test_every_limit_says_where_it_comes_from() -> None:
    provenance = default_tolerances().provenance
    limits = default_tolerances().extra["tensors"]
    assert isinstance(limits, dict)
    assert {f"extra.tensors.{name}" for name in limits} <= set(provenance)
