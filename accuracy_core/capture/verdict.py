"""All taps of one prompt judged together: verdict, first divergent module, head, position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from accuracy_core.capture.compare import Tensors, shape_problem
from accuracy_core.capture.depth import depth_growth, progression
from accuracy_core.capture.heads import heads_of
from accuracy_core.capture.judge import Judgement, TapErrors, judge_tap
from accuracy_core.capture.limits import TensorLimits, kind_of
from accuracy_core.capture.routing import choice_differs, experts_per_token, router_of, undecided
from accuracy_core.capture.taps import layer_of
from accuracy_core.capture.tensor_error import TensorError, tensor_error
from accuracy_core.outcome import Verdict
from accuracy_core.schemas.prompt_result import GuardHit, Phase
from accuracy_core.schemas.tensor_result import DivergentModule, TensorCompareResult

#: mean factor towards zero, in units of the dtype's spacing, that is worth a note: rounding to nearest gives none
_LEAN_WORTH_A_NOTE = -0.25
#: taps whose value is another tap's: what a layer needs to be complete does not include them
_COPIES = ("self_attn", "mlp")
LM_HEAD = "lm_head"


@dataclass(frozen=True)
class PromptTensors:
    """One prompt's captures: canonical tap -> (positions, features).

    `fp32`, `dtype`: the references' own runs. `target`: what the engine computed; `lm_head` may hold the last positions
    only. `local_fp32`, `local_dtype`: what the references' modules make of the target's inputs (see `capture.local`);
    empty: not measured. `available`: every tap of the reference model. `missing`, `wrong`: tap -> why it is not there,
    or why what is there cannot be right (ranks that disagree, another number of layers).
    """

    prompt_length: int
    target: Tensors
    fp32: Tensors = field(default_factory=dict)
    dtype: Tensors = field(default_factory=dict)
    local_fp32: Tensors = field(default_factory=dict)
    local_dtype: Tensors = field(default_factory=dict)
    available: Sequence[str] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    wrong: Mapping[str, str] = field(default_factory=dict)


def comparable(target: Tensors, reference: Tensors) -> dict[str, torch.Tensor]:
    """The target's tensors that fit the reference's shapes: those that a local pass can put in place."""
    return {
        tap: rows
        for tap, rows in target.items()
        if tap in reference and not shape_problem(_last_rows(tap, reference[tap], rows), rows)
    }


def judge_prompt(
    index: int,
    tensors: PromptTensors,
    config: Mapping[str, Any],
    dtype: torch.dtype,
    limits: TensorLimits,
    max_l2_ratio: float = 3.0,
) -> TensorCompareResult:
    """Judge every tap of a prompt in prefill and decode. `dtype` is the target's; `config` as in `config.json`."""
    errors = tap_errors(tensors, config, dtype)
    judged = [
        judgement
        for item in errors
        for judgement in judge_tap(item, tensors.prompt_length, dtype, limits, max_l2_ratio)
    ]
    whole = {item.tap: item.whole for item in errors if item.whole is not None}
    first = first_divergent(judged)
    notes = [*_notes(tensors, judged, config, dtype), *_inherited(judged, max_l2_ratio)]
    verdict = _verdict(judged, rerouted=any(note.startswith("experts") for note in notes))
    return TensorCompareResult(
        index=index,
        verdict=verdict,
        phase=first.phase if first else Phase.NONE,
        guards=_guards(index, tensors.prompt_length, first, limits),
        prompt_length=tensors.prompt_length,
        positions=max((error.positions for error in whole.values()), default=0),
        modules=[judgement.metrics for judgement in judged],
        first_divergent=first,
        progression=progression(whole),
        depth=depth_growth(whole, limits.depth_min_layers),
        missing=dict(tensors.missing),
        notes=notes,
    )


def tap_errors(tensors: PromptTensors, config: Mapping[str, Any], dtype: torch.dtype) -> list[TapErrors]:
    """Errors of every tap that the target has, in the order of execution."""
    order = list(tensors.local_fp32) or list(tensors.fp32)
    order += [tap for tap in tensors.target if tap not in order]
    order = [tap for tap in tensors.wrong if tap not in order] + order
    chosen = experts_per_token(config)
    loose = _loose(tensors)
    positions = max(
        (side.shape[0] for sides in (tensors.fp32, tensors.local_fp32) for side in sides.values()), default=0
    )
    found = []
    for number, tap in enumerate(order):
        if tap in tensors.wrong:
            found.append(TapErrors(tap, number, problem=tensors.wrong[tap]))
        if tap in tensors.wrong or tap not in tensors.target:
            continue
        target = tensors.target[tap]
        heads = heads_of(tap, config)
        whole, problem = _error(tensors.fp32, tensors.dtype, tap, target, heads)
        local, _ = _error(tensors.local_fp32, tensors.local_dtype, tap, target, heads)
        if whole is None and local is None and not problem:
            continue
        judged = None
        router = router_of(tap, tensors.target)
        if chosen and router and tap != router:
            judged = ~undecided(tensors.target[router].to(dtype), chosen)
        first = positions - target.shape[0] if tap == LM_HEAD and not problem else 0
        found.append(TapErrors(tap, number, whole, local, judged, tap in loose, problem, first))
    return found


def first_divergent(judged: Sequence[Judgement]) -> DivergentModule | None:
    """The first module, in the order of execution, that is wrong by itself; without local errors, the first over the
    documented limit."""
    failed = [item for item in judged if item.metrics.verdict is Verdict.FAIL]
    if not failed:
        return None
    order = min(item.metrics.order for item in failed)
    here = [item for item in failed if item.metrics.order == order]
    worst = max(here, key=lambda item: item.metrics.nonfinite or _size(item))
    metrics = worst.metrics
    phase = Phase.BOTH if len({item.metrics.phase for item in here}) > 1 else metrics.phase
    bad = [position for item in here for position in item.bad]
    few_heads = worst.heads if 0 < len(worst.heads) <= worst.num_heads // 2 else ()
    head = few_heads[0] if few_heads and len(few_heads) == 1 else (metrics.worst_head if few_heads else None)
    local = metrics.local_ratio == metrics.local_ratio
    return DivergentModule(
        module=metrics.module,
        layer=metrics.layer,
        head=head,
        position=min(bad) if bad else metrics.worst_position,
        phase=phase,
        ratio=metrics.local_ratio if local else metrics.l2_ratio,
        local=local,
        evidence="; ".join(f"{item.metrics.phase}: {item.reason}" for item in here if item.reason),
    )


def _guards(index: int, prompt_length: int, first: DivergentModule | None, limits: TensorLimits) -> list[GuardHit]:
    """The first divergent module as a guard hit; `token` is the generation index of its position."""
    if first is None:
        return []
    token = -1 if first.position is None else max(first.position - prompt_length + 1, 0)
    limit = float(getattr(limits, kind_of(first.module)))
    return [
        GuardHit(guard="tensor_local", prompt=index, token=token, value=first.ratio, limit=limit, detail=first.evidence)
    ]


def _size(item: Judgement) -> float:
    ratio = item.metrics.local_ratio
    return ratio if ratio == ratio else 0.0


def _verdict(judged: Sequence[Judgement], *, rerouted: bool) -> Verdict | None:
    verdicts = {item.metrics.verdict for item in judged}
    if Verdict.FAIL in verdicts:
        return Verdict.FAIL
    if Verdict.SUSPECT in verdicts and not rerouted:
        return Verdict.SUSPECT
    return Verdict.PASS if verdicts & {Verdict.PASS, Verdict.SUSPECT} else None


def _notes(
    tensors: PromptTensors, judged: Sequence[Judgement], config: Mapping[str, Any], dtype: torch.dtype
) -> list[str]:
    notes = []
    leaning = [item for item in judged if item.lean_ulps < _LEAN_WORTH_A_NOTE and not item.reason]
    if leaning and dtype is not torch.float32:  # sums in float32 are off by more than one rounding anyway
        worst = min(leaning, key=lambda item: item.lean_ulps)
        taps = sorted({item.metrics.module.rpartition(".")[2] for item in leaning})
        notes.append(
            f"{', '.join(taps)} lean towards zero by up to {-worst.lean_ulps:.2f} of a unit in the last place "
            f"({worst.metrics.module}): bits are cut off there instead of rounded"
        )
    chosen = experts_per_token(config)
    for tap, target in tensors.target.items():
        reference = tensors.fp32.get(tap)
        if chosen and tap.endswith((".gate", ".router")) and reference is not None:
            different = choice_differs(reference, target, chosen).nonzero().flatten().tolist()
            if different:
                notes.append(
                    f"experts chosen otherwise than in FP32 from {tap} on, position {different[0]}: later global "
                    "errors come from that choice, the local ones tell whether a module is right"
                )
                break
    return notes


def _inherited(judged: Sequence[Judgement], max_l2_ratio: float) -> list[str]:
    over = [item.metrics for item in judged if item.metrics.l2_ratio >= max_l2_ratio and not item.reason]
    if not over or any(item.reason for item in judged):
        return []
    worst = max(over, key=lambda metrics: metrics.l2_ratio)
    return [
        f"global L2 ratio up to {worst.l2_ratio:.2f} ({worst.module}, {worst.phase}), limit {max_l2_ratio:g}, while "
        "every module is right given its inputs: amplified on the way, not made there"
    ]


def _error(
    reference: Tensors, base: Tensors, tap: str, target: torch.Tensor, heads: int
) -> tuple[TensorError | None, str]:
    if tap not in reference or tap not in base:
        return None, ""
    f, b = (_last_rows(tap, side[tap], target) for side in (reference, base))
    problem = shape_problem(f, target)
    return (None, problem) if problem else (tensor_error(f, b, target, heads), "")


def _last_rows(tap: str, reference: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Logits are asked for from the prompt's last position on."""
    if tap == LM_HEAD and 0 < target.shape[0] < reference.shape[0]:
        return reference[reference.shape[0] - target.shape[0] :]
    return reference


def _loose(tensors: PromptTensors) -> set[str]:
    """Taps whose module was given something that was not tapped: all of a layer that is not complete, and what follows
    a gap outside of the layers."""
    missing = [tap for tap in tensors.available if tap not in tensors.target and tap.rpartition(".")[2] not in _COPIES]
    layers = {layer_of(tap) for tap in missing}
    loose = {tap for tap in tensors.target if layer_of(tap) in layers}
    complete = not missing
    return loose if complete else loose | {tap for tap in tensors.target if layer_of(tap) is None}
