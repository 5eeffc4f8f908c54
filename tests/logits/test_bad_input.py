"""Input that cannot be compared is named, with both shapes, before anything is generated."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from accuracy_core.errors import (
    ConfigurationError,
    InfrastructureError,
    InputMismatchError,
    NotMeasuredError,
    ReferenceError_,
)
from accuracy_core.logits import compare_prompts, logit_validation, multi_prompt_logit_validation


def x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


GOOD = x(3, 1, 50)

MISMATCHES: list[tuple[str, dict[str, Any], str]] = [
    ("two dimensions", {"expected": [x(3, 50)]}, r"\(3, 50\)"),
    ("no tensor", {"expected": [[1.0]]}, "list"),
    ("integers", {"expected": [x(3, 1, 50).long()]}, "int64"),
    ("bools in the target", {"target": [GOOD > 0]}, "bool"),
    ("complex", {"target": [GOOD.to(torch.complex64)]}, "complex64"),
    ("empty", {"expected": [x(0, 1, 50)]}, r"\(0, 1, 50\)"),
    ("no vocabulary", {"expected": [x(3, 1, 0)], "target": [x(3, 1, 0)]}, "empty"),
    ("other baseline", {"baseline": [x(3, 1, 40)]}, r"\(3, 1, 40\).*\(3, 1, 50\)"),
    ("other batch", {"target": [x(3, 2, 50)]}, r"\(3, 2, 50\).*\(3, 1, 50\)"),
    ("more tokens than the reference", {"target": [x(4, 1, 50)]}, r"\(4, 1, 50\).*\(3, 1, 50\)"),
    ("narrow target", {"target": [x(3, 1, 49)]}, r"\(3, 1, 49\).*\(3, 1, 50\)"),
    ("numbers of prompts", {"target": [GOOD, GOOD]}, "numbers of prompts"),
    ("number of baselines", {"baseline": [GOOD, GOOD]}, "numbers of prompts"),
    ("no prompts", {"expected": [], "target": []}, "no prompts"),
    ("vocabularies differ", {"expected": [GOOD, x(3, 1, 60)], "target": [GOOD, x(3, 1, 60)]}, "vocabulary sizes"),
    ("tokenizer wider than the reference", {"vocab_size": 51}, "51 ids.*50 columns"),
    ("ids of another length", {"sampled": [torch.zeros(2, 1, dtype=torch.long)]}, r"\(2, 1\).*\(3, 1, 50\)"),
    ("float ids", {"sampled": [torch.zeros(3, 1)]}, "integers"),
    ("ids out of range", {"sampled": [torch.full((3, 1), 50)]}, "outside"),
    ("negative ids", {"sampled": [torch.full((3, 1), -1)]}, "outside"),
]


@pytest.mark.parametrize(("kwargs", "message"), [m[1:] for m in MISMATCHES], ids=[m[0] for m in MISMATCHES])
def test_tensors_that_do_not_fit(kwargs: dict[str, Any], message: str) -> None:
    arguments = {"baseline": None, "expected": [GOOD], "target": [GOOD]} | kwargs
    with pytest.raises(InputMismatchError, match=message):
        compare_prompts(**arguments)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"tol_map": {}}, "empty"),
        ({"tol_map": {"five": (1e-5, 0.01)}}, "'five'"),
        ({"tol_map": {"0": (1e-5, 0.01)}}, "'0'"),
        ({"tol_map": {"-5": (1e-5, 0.01)}}, "'-5'"),
        ({"tol_map": {"5.5": (1e-5, 0.01)}}, "'5.5'"),
        ({"tol_map": {"5": 0.01}}, "pair"),
        ({"tol_map": {"5": (1e-5,)}}, "pair"),
        ({"tol_map": {"5": (1e-5, math.nan)}}, "finite"),
        ({"tol_map": {"5": (1e-5, -1.0)}}, "not negative"),
        ({"tol_map": {"5": (0, 1), 5: (0, 1)}}, "twice"),
        ({"aggregate_config": {"agg_sigma": 1.0}}, "'agg_sigma'"),
        ({"aggregate_config": {"agg_bc_threshold": 2.0}}, "no limit"),
        ({"aggregate_config": {"guards": {"l3_ratio": 1}}}, "l3_ratio"),
        ({"target_dtype": "int8"}, "int8"),
        ({"rescue": "always"}, "always"),
    ],
)
def test_settings_that_mean_nothing_cost_no_generation(kwargs: dict[str, Any], message: str) -> None:
    def generate(ids: torch.Tensor) -> torch.Tensor:
        raise AssertionError("must not be called")

    with pytest.raises(ConfigurationError, match=message):
        multi_prompt_logit_validation([[[1, 2]]], generate, [GOOD], [GOOD], **kwargs)


@pytest.mark.parametrize(
    ("input_ids", "expected", "message"),
    [
        ([[[1], [2]]], [GOOD], "2 batch rows.*1"),
        ([[[]]], [GOOD], "empty prompt"),
        ([], [GOOD], "numbers of prompts"),
        ([], [], "no prompts"),
        ([[[1]]], [x(3, 50)], r"\(3, 50\)"),
    ],
)
def test_prompts_that_do_not_fit_cost_no_generation(input_ids: Any, expected: Any, message: str) -> None:
    def generate(ids: torch.Tensor) -> torch.Tensor:
        raise AssertionError("must not be called")

    with pytest.raises(InputMismatchError, match=message):
        multi_prompt_logit_validation(input_ids, generate, expected)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("side", ["baseline", "expected"])
def test_a_broken_reference_is_an_error_never_a_verdict(side: str, value: float) -> None:
    broken = GOOD.clone()
    broken[1, 0, 3] = value
    sides = {"baseline": [GOOD], "expected": [GOOD], "target": [GOOD]} | {side: [broken]}
    with pytest.raises(ReferenceError_, match=rf"{side} logits hold NaN or \+inf \(prompt 0"):
        compare_prompts(**sides)


def test_a_broken_reference_is_an_error_in_two_way_mode_too() -> None:
    broken = GOOD.clone()
    broken[2, 0, 0] = math.nan
    with pytest.raises(ReferenceError_):
        compare_prompts(None, [broken], [GOOD])


def test_references_that_mask_differently_or_everything() -> None:
    masked, void = GOOD.clone(), GOOD.clone()
    masked[:, :, 5] = -math.inf
    void[1] = -math.inf
    with pytest.raises(ReferenceError_, match="mask"):
        compare_prompts([GOOD], [masked], [GOOD])
    with pytest.raises(ReferenceError_, match="whole vocabulary"):
        compare_prompts([void], [void], [GOOD])


def test_no_target_row_at_all_is_not_measured() -> None:
    with pytest.raises(NotMeasuredError, match="no token"):
        compare_prompts(None, [GOOD], [x(0, 1, 50)])


def answers(*parts: Any) -> Any:
    """A generate function that gives one answer after the other."""
    left = list(parts)

    def generate(ids: torch.Tensor) -> Any:
        part = left.pop(0)
        if isinstance(part, Exception):
            raise part
        return part

    return generate


def diverging() -> torch.Tensor:
    """Rows whose first token is not the reference's."""
    return -GOOD


@pytest.mark.parametrize(
    ("parts", "error", "message"),
    [
        ([x(0, 1, 50)], NotMeasuredError, "no token"),
        ([None], NotMeasuredError, "None"),
        ([RuntimeError("device lost")], InfrastructureError, "RuntimeError: device lost"),
        (["text"], InputMismatchError, "str"),
        ([x(3, 50)], InputMismatchError, r"\(3, 50\)"),
        ([x(3, 2, 50)], InputMismatchError, r"\(1, 2\).*\(3, 2, 50\)"),
        ([diverging(), x(2, 1, 60)], InputMismatchError, r"call 2.*\(2, 1, 60\).*\(1, 1, 50\)"),
        ([diverging(), x(2, 1, 50, dtype=torch.bfloat16)], InputMismatchError, "bfloat16.*float32"),
        ([diverging(), ValueError("oom")], InfrastructureError, "call 2.*oom"),
        ([(GOOD, torch.zeros(3, 1))], InputMismatchError, "integers"),
        ([(GOOD, torch.zeros(4, 1, dtype=torch.long))], InputMismatchError, r"\(4, 1\).*\(3, 1, 50\)"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_generate_functions_that_misbehave(parts: list[Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        logit_validation([[1, 2]], answers(*parts), GOOD, save_logits=False)


def test_generate_fn_that_is_none() -> None:
    with pytest.raises(InputMismatchError, match="callable"):
        logit_validation([[1]], None, GOOD, save_logits=False)  # type: ignore[arg-type]


def test_folder_that_cannot_be_written(tmp_path: Any) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot write"):
        logit_validation([[1]], lambda ids: GOOD, GOOD, output_dir=str(tmp_path / "file" / "out"))
