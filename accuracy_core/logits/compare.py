"""Compare logits that are already there: the entry of everything that decodes in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from accuracy_core.errors import ConfigurationError, InputMismatchError, NotMeasuredError
from accuracy_core.logits.result import MultiPromptValidationResult, PromptVerdict, Worst
from accuracy_core.numerics import Judgement, Plan, PromptLogits, default_tolerances, judge, locate, stream
from accuracy_core.numerics.verdict import documented_rule, verdict
from accuracy_core.outcome import Verdict
from accuracy_core.schemas import GuardHit, RowMetrics, Tolerances

RESCUES = ("guarded", "documented")


@torch.no_grad()
def compare_prompts(
    baseline: Sequence[torch.Tensor] | None,
    expected: Sequence[torch.Tensor],
    target: Sequence[torch.Tensor],
    sampled: Sequence[torch.Tensor | None] | None = None,
    *,
    tolerances: Tolerances | None = None,
    vocab_size: int | None = None,
    target_dtype: str = "bfloat16",
    rescue: str | None = None,
    chunk_rows: int | None = None,
) -> MultiPromptValidationResult:
    """Compare the logits of several prompts, one tensor (tokens, batch, vocab) per prompt and side.

    `baseline` (FP32) None: two-way, `target` against `expected`. `sampled`: ids the target chose, (tokens, batch),
    where it did not take the argmax. `tolerances` None: the defaults. `vocab_size`: ids of the tokenizer, None: the
    reference's width; columns beyond it are padding. `target_dtype`: what the target computes in ("bfloat16",
    "float16", "float32"). `rescue="documented"` judges by the plain documented OR, without guards. `chunk_rows`: rows
    per chunk, None: chosen for the cache; no result depends on it.

    Raises InputMismatchError (shapes, dtypes, lengths), ConfigurationError (settings), ReferenceError_ (non-finite
    reference), NotMeasuredError (no target row at all). The inputs are not changed.
    """
    tolerances = tolerances or default_tolerances()
    rescue = rescue or "guarded"
    if rescue not in RESCUES:
        raise ConfigurationError(f"rescue {rescue!r} is unknown, choose one of {', '.join(RESCUES)}")
    prompts = _prompts(baseline, expected, target, sampled, vocab_size)
    plan = Plan.make(
        tolerances,
        vocab=vocab_size or prompts[0].expected.shape[2],
        three_way=baseline is not None,
        target_dtype=target_dtype,
        chunk_rows=chunk_rows,
    )
    judgement = judge(stream(prompts, plan), plan, tolerances, rescue=rescue)
    return _result(judgement, len(prompts), tolerances, rescue)


def _prompts(
    baseline: Sequence[torch.Tensor] | None,
    expected: Sequence[torch.Tensor],
    target: Sequence[torch.Tensor],
    sampled: Sequence[torch.Tensor | None] | None,
    vocab_size: int | None,
) -> list[PromptLogits]:
    lengths = {"expected": len(expected), "target": len(target)}
    lengths |= {} if baseline is None else {"baseline": len(baseline)}
    lengths |= {} if sampled is None else {"sampled": len(sampled)}
    if len(set(lengths.values())) != 1:
        raise InputMismatchError(f"numbers of prompts differ: {lengths}", fix="give one tensor per prompt and side")
    if not expected:
        raise InputMismatchError("no prompts: the lists are empty", fix="give at least one prompt")
    prompts = [
        PromptLogits(
            None if baseline is None else baseline[i], expected[i], target[i], None if sampled is None else sampled[i]
        ).check(i, vocab_size)
        for i in range(len(expected))
    ]
    widths = {p.expected.shape[2] for p in prompts}
    if vocab_size is None and len(widths) > 1:
        raise InputMismatchError(f"the prompts' references have different vocabulary sizes: {sorted(widths)}")
    if not any(p.target.shape[0] for p in prompts):
        raise NotMeasuredError(
            "the target has no token at all for any prompt", fix="check that the engine generates and records logits"
        )
    return prompts


def _result(judgement: Judgement, n_prompts: int, tolerances: Tolerances, rescue: str) -> MultiPromptValidationResult:
    rows, guards = judgement.rows, judgement.guards
    rescued = documented_rule(r for r in judgement.routes if r.route != "two_way")
    by_prompt: list[list[RowMetrics]] = [[] for _ in range(n_prompts)]
    for row in rows:
        by_prompt[row.prompt].append(row)
    per_prompt = []
    for index, own in enumerate(by_prompt):
        hits = [h for h in guards if h.prompt in (index, -1)]
        two_way = bool(own) and all(r.two_way_passed for r in own)
        judged = verdict(two_way or rescued, hits, rescue=rescue)
        place = locate(own, hits, tolerances, failed=judged is Verdict.FAIL)
        per_prompt.append(PromptVerdict(index, judged, two_way, place.phase, place.first_bad_token, hits))
    place = locate(rows, guards, tolerances, failed=judgement.verdict is Verdict.FAIL)
    return MultiPromptValidationResult(
        passed=judgement.verdict is Verdict.PASS,
        verdict=judgement.verdict,
        routes=judgement.routes,
        guards=guards,
        rows=rows,
        per_prompt=per_prompt,
        aggregate_metrics={
            **judgement.metrics,
            "two_way_prompts_passed": sum(p.two_way_passed for p in per_prompt),
            "prompts": n_prompts,
            "rows": len(rows),
            "rescue": rescue,
        },
        phase=place.phase,
        first_bad_token=place.first_bad_token,
        worst=_worst(rows, guards),
        worst_guard=max(guards, key=_excess, default=None),
    )


def _excess(hit: GuardHit) -> tuple[bool, bool, float]:
    """Order of hits: what is no number or masked first, then hits on one row by how far they are beyond their limit."""
    ratio = hit.value / hit.limit if hit.limit > 0 else float("inf")
    return hit.guard in ("non_finite", "mask_differs"), hit.token >= 0 and hit.prompt >= 0, ratio


def _worst(rows: Sequence[RowMetrics], guards: Sequence[GuardHit]) -> Worst | None:
    on_rows = [h for h in guards if h.token >= 0 and h.prompt >= 0]
    if on_rows:
        h = max(on_rows, key=_excess)
        return Worst(h.prompt, h.batch, h.token, h.guard, h.value, h.limit)
    if not rows:
        return None
    if any(r.l2_ratio == r.l2_ratio for r in rows):
        r = max(rows, key=lambda r: r.l2_ratio)
        return Worst(r.prompt, r.batch, r.token, "l2_ratio", r.l2_ratio, float("nan"))
    r = max(rows, key=lambda r: max(r.topk_error.values()))
    return Worst(r.prompt, r.batch, r.token, "topk_error", max(r.topk_error.values()), float("nan"))
