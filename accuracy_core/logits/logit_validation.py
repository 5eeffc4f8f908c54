"""The documented entry points: validate a target through its generate function."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from accuracy_core.errors import InputMismatchError
from accuracy_core.logits.compare import compare_prompts
from accuracy_core.logits.result import MultiPromptValidationResult
from accuracy_core.logits.saving import save_logit_tensors
from accuracy_core.logits.settings import effective_tolerances
from accuracy_core.logits.teacher_forcing import Forced, GenerateFn, force
from accuracy_core.numerics.inputs import check_logits
from accuracy_core.schemas import Tolerances

log = logging.getLogger(__name__)


def logit_validation(
    input_ids: Sequence[Sequence[int]],
    generate_fn: GenerateFn,
    expected_logits: torch.Tensor,
    tol_map: Mapping[Any, Any] | None = None,
    baseline_logits: torch.Tensor | None = None,
    visualize: bool = False,
    save_logits: bool = True,
    output_dir: str = "validation_output",
    *,
    tolerances: Tolerances | None = None,
    aggregate_config: Mapping[str, Any] | None = None,
    vocab_size: int | None = None,
    target_dtype: str = "bfloat16",
    rescue: str | None = None,
) -> bool:
    """Does the target reproduce the reference for one prompt (or batch of prompts)? True only for verdict `pass`.

    `input_ids`: one list of token ids per batch row. `expected_logits`, `baseline_logits`: (tokens, batch, vocab);
    with a baseline the comparison is three-way. `generate_fn`: see `teacher_forcing.force`. `save_logits` writes
    `reference_logits.pt` and `target_logits.pt` (all tokens), `visualize` the HTML pages, into `output_dir`. The other
    arguments and the errors raised are those of `multi_prompt_logit_validation`.
    """
    result, forced = _validate(
        [input_ids], generate_fn, [expected_logits], None if baseline_logits is None else [baseline_logits],
        effective_tolerances(tolerances, tol_map, aggregate_config), vocab_size, target_dtype, rescue,
    )  # fmt: skip
    if save_logits:
        save_logit_tensors(Path(output_dir), expected_logits, forced[0].logits)
    if visualize:
        from accuracy_core.logits.logit_visualization import visualize_logit_results

        visualize_logit_results(result.results(0), output_dir, expected_logits.shape[0], save_logits=save_logits)
    log.info("logit validation: %s (%s)", result.verdict, "; ".join(f"{r.route}: {r.passed}" for r in result.routes))
    return result.passed


def multi_prompt_logit_validation(
    prompts_input_ids: Sequence[Sequence[Sequence[int]]],
    generate_fn: GenerateFn,
    prompts_expected_logits: Sequence[torch.Tensor],
    prompts_baseline_logits: Sequence[torch.Tensor] | None = None,
    aggregate_config: Mapping[str, Any] | None = None,
    tol_map: Mapping[Any, Any] | None = None,
    *,
    tolerances: Tolerances | None = None,
    vocab_size: int | None = None,
    target_dtype: str = "bfloat16",
    rescue: str | None = None,
    save_logits: bool = False,
    output_dir: str | None = None,
) -> MultiPromptValidationResult:
    """Validate a target over several prompts, teacher-forced on the reference's tokens.

    `prompts_input_ids[prompt][batch row]` are token ids; `prompts_expected_logits`, `prompts_baseline_logits`: one
    tensor (tokens, batch, vocab) per prompt; with baselines (FP32) the comparison is three-way and they drive teacher
    forcing, otherwise the expected logits do. `aggregate_config`, `tol_map`: see `settings.effective_tolerances`.
    `vocab_size`: ids of the tokenizer (columns beyond are padding). `rescue="documented"`: the plain documented OR,
    without guards. With `save_logits`, `prompt_<i>/reference_logits.pt` and `target_logits.pt` are written under
    `output_dir`.

    Raises before anything is generated: InputMismatchError, ConfigurationError. Later: NotMeasuredError (an empty first
    generation), InfrastructureError (generate_fn raised), InputMismatchError (what it returned does not fit),
    ReferenceError_ (NaN in a reference). Missing later tokens are a guard, not an error.
    """
    result, forced = _validate(
        prompts_input_ids, generate_fn, prompts_expected_logits, prompts_baseline_logits,
        effective_tolerances(tolerances, tol_map, aggregate_config), vocab_size, target_dtype, rescue,
    )  # fmt: skip
    if save_logits and output_dir is not None:
        for i, (expected, part) in enumerate(zip(prompts_expected_logits, forced, strict=True)):
            save_logit_tensors(Path(output_dir) / f"prompt_{i}", expected, part.logits)
    return result


def _validate(
    input_ids: Sequence[Sequence[Sequence[int]]],
    generate_fn: GenerateFn,
    expected: Sequence[torch.Tensor],
    baseline: Sequence[torch.Tensor] | None,
    tolerances: Tolerances,
    vocab_size: int | None,
    target_dtype: str,
    rescue: str | None,
) -> tuple[MultiPromptValidationResult, list[Forced]]:
    if not callable(generate_fn):
        raise InputMismatchError(f"generate_fn is not callable: {type(generate_fn).__name__}")
    counts = {"input_ids": len(input_ids), "expected": len(expected)} | (
        {} if baseline is None else {"baseline": len(baseline)}
    )
    if len(set(counts.values())) != 1:
        raise InputMismatchError(f"numbers of prompts differ: {counts}", fix="give one entry per prompt in each list")
    for i, x in enumerate(expected):
        check_logits(x, f"prompt {i}: expected logits")
    # the references are compared with themselves first: bad shapes or settings must not cost a generation
    if expected:
        first = [x[:1] for x in expected]
        compare_prompts(
            None if baseline is None else [x[:1] for x in baseline], first, first,
            tolerances=tolerances, vocab_size=vocab_size, target_dtype=target_dtype, rescue=rescue,
        )  # fmt: skip
    guides = expected if baseline is None else baseline
    forced = []
    for ids, guide in zip(input_ids, guides, strict=True):
        known = guide if vocab_size is None else guide[..., :vocab_size]
        forced.append(force(ids, generate_fn, known.argmax(-1)))
    result = compare_prompts(
        baseline, expected, [p.logits for p in forced], [p.ids for p in forced],
        tolerances=tolerances, vocab_size=vocab_size, target_dtype=target_dtype, rescue=rescue,
    )  # fmt: skip
    return result, forced
