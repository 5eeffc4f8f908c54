"""Measures the tolerances of the tasks; `python -m accuracy_core.grading.calibrate_tasks` writes task_tolerances.json.

Tolerance = 2 * sqrt(noise floor^2 + error^2) of the worst legitimate variant (accuracy_core.calibration.tolerance) over
seeds; with it go the margin of each variant and how far known-wrong implementations are over it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import torch

from accuracy_core.calibration.relative_error import relative_error
from accuracy_core.calibration.tolerance import discrimination, margin, tolerance
from accuracy_core.grading.baselines import machine_name
from accuracy_core.grading.shape import KvCache, StepConfig, Weights, make_cache, make_tokens, make_weights
from accuracy_core.grading.task import SHAPES, TOLERANCES
from accuracy_core.grading.unfused import Step, build_in

SEEDS = 20
#: another seed than the weights that submissions are graded on: the tolerance is the task's, not one model's
WEIGHT_SEED = 11
_BF16, _FP32 = torch.bfloat16, torch.float32


def _right(residual: torch.dtype, fused: bool) -> Callable[[StepConfig, Weights], Step]:
    return lambda config, weights: build_in(config, weights, _BF16, residual, fused_attention=fused)


#: equally right
RIGHT: dict[str, Callable[[StepConfig, Weights], Step]] = {
    f"{str(residual).removeprefix('torch.')} residual, {'fused' if fused else 'eager'} attention": _right(
        residual, fused
    )
    for residual in (_BF16, _FP32)
    for fused in (False, True)
}


def _without(part: str) -> Callable[[StepConfig, Weights], Step]:
    """The middle layer's `part` leaves nothing behind."""

    def build(config: StepConfig, weights: Weights) -> Step:
        name = f"{config.layers // 2}.{part}"
        nothing = torch.zeros_like(weights[name].float()).to(weights[name].dtype)
        return build_in(config, {**weights, name: nothing}, _BF16)

    return build


def _shifted_position(config: StepConfig, weights: Weights) -> Step:
    """Every position one too low, and the oldest token forgotten."""
    step = build_in(config, weights, _BF16)

    def shifted(ids: torch.Tensor, cache: KvCache) -> torch.Tensor:
        moved = KvCache(cache.k[..., 1:, :], cache.v[..., 1:, :], cache.length - 1)
        return step(ids, moved)

    return shifted


def _other_token(config: StepConfig, weights: Weights) -> Step:
    step = build_in(config, weights, _BF16)
    return lambda ids, cache: step((ids + 1) % config.vocab, cache)


def _without_cache(config: StepConfig, weights: Weights) -> Step:
    """Attends to its own token only."""
    step = build_in(config, weights, _BF16)

    def alone(ids: torch.Tensor, cache: KvCache) -> torch.Tensor:
        return step(ids, KvCache(cache.k[..., cache.length :, :], cache.v[..., cache.length :, :], 0))

    return alone


WRONG: dict[str, Callable[[StepConfig, Weights], Step]] = {
    "one MLP left out": _without("down"),
    "another token": _other_token,
    "cache left out": _without_cache,
}
#: wrong by little: the gate must see it, and need not be ten times exceeded. One layer's attention is a mean over
#: several random values, which is small beside the stream, and smaller the more tokens there are
SUBTLE: dict[str, Callable[[StepConfig, Weights], Step]] = {
    "one attention left out": _without("o"),
    "positions off by one": _shifted_position,
}


@torch.inference_mode()
def logits_of(step: Step, config: StepConfig, seed: int, steps: int) -> torch.Tensor:
    """float32 (steps * batch, vocab) of one sequence, fed the same tokens whatever comes out."""
    cache, rows = make_cache(config, seed, steps), []
    for ids in make_tokens(config, seed + 1, steps):
        rows.append(step(ids, cache).float())
        cache.length += 1
    return torch.cat(rows)


def measure_task(name: str, seeds: int = SEEDS) -> dict[str, Any]:
    """Noise floor, error of every variant (largest over seeds), tolerance, margins, discrimination."""
    config, steps = SHAPES[name]
    weights = make_weights(config, WEIGHT_SEED)
    reference = build_in(config, weights, _FP32)
    again = build_in(config, {key: tensor.clone() for key, tensor in weights.items()}, _FP32)
    right = {key: build(config, weights) for key, build in RIGHT.items()}
    wrong = {key: build(config, weights) for key, build in {**WRONG, **SUBTLE}.items()}
    floor, errors, least = 0.0, dict.fromkeys(right, 0.0), dict.fromkeys(wrong, float("inf"))
    for seed in range(0, 2 * seeds, 2):
        want = logits_of(reference, config, seed, steps)
        floor = max(floor, relative_error(logits_of(again, config, seed, steps), want))
        for key, step in right.items():
            errors[key] = max(errors[key], relative_error(logits_of(step, config, seed, steps), want))
        for key, step in wrong.items():
            least[key] = min(least[key], relative_error(logits_of(step, config, seed, steps), want))
    allowed = tolerance(floor, errors)
    return {
        "tolerance": round(allowed, 4),
        "noise_floor": floor,
        "errors": errors,
        "margins": {key: margin(error, allowed) for key, error in errors.items()},
        "discrimination": {key: discrimination(error, allowed) for key, error in least.items()},
        "provenance": _provenance(config, steps, seeds),
    }


def _provenance(config: StepConfig, steps: int, seeds: int) -> str:
    return (
        f"measured on {machine_name('cpu')}, torch {torch.__version__.split('+')[0]}, {datetime.now(UTC):%Y-%m-%d}: "
        f"2 x the worst of {len(RIGHT)} right variants over {seeds} sequences of {steps} steps, {config.layers} layers "
        f"of {config.hidden}, context {config.context}"
    )


def write(found: Mapping[str, Any]) -> None:
    TOLERANCES.write_text(json.dumps({"tasks": found}, indent=2) + "\n", encoding="utf-8")


def main() -> int:
    torch.set_num_threads(1)
    found = {}
    for name in SHAPES:
        found[name] = measure_task(name)
        print(name, json.dumps(found[name], indent=2))
    write(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
