"""Level 3: each module of the target against Hugging Face's, on seeded inputs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from accuracy_core.errors import ConfigurationError, NotMeasuredError
from accuracy_core.modules.closeness import ThreeWayCloseness, closeness_three_way
from accuracy_core.modules.executor import ModuleExecutor, ModuleInput
from accuracy_core.modules.hf_executor import HfModuleExecutor
from accuracy_core.modules.kinds import Wiring, layer_input, module_kind, module_kinds, wire
from accuracy_core.modules.limits import ModuleLimits
from accuracy_core.modules.rounding import digits_cut
from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.schemas import ModuleCheck, ModuleValidationResult, Tolerances

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

Rows = dict[str, torch.Tensor]
#: called with (checks done, checks in all, what is next)
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Plan:
    """What is fed: `seeds` inputs of `prefill` rows at once and `decode` rows one by one. RMS of the rows is 1."""

    seeds: int = 10
    prefill: int = 24
    decode: int = 4
    first_seed: int = 0

    def __post_init__(self) -> None:
        if self.seeds < 1 or self.prefill < 1 or self.decode < 0:
            raise ConfigurationError(
                f"{self.seeds} inputs of {self.prefill} + {self.decode} rows cannot be made",
                fix="use at least one input of one row",
            )

    @property
    def numbers(self) -> range:
        """Seeds of the inputs."""
        return range(self.first_seed, self.first_seed + self.seeds)


@dataclass(frozen=True)
class Compared:
    """One seeded input on all sides: tap -> rows."""

    given: ModuleInput
    fp32: Rows
    expected: Rows
    target: Rows

    def rows(self, phase: str) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        """(FP32, expected, target) rows of a phase, one tensor per tap."""
        part = slice(0, self.given.prefill) if phase == "prefill" else slice(self.given.prefill, None)
        taps = list(self.fp32)
        return tuple([side[tap][part] for tap in taps] for side in (self.fp32, self.expected, self.target))  # type: ignore[return-value]


#: draws what there is to see of a failed check and returns the page's path
OnFailure = Callable[[ModuleCheck, list[Compared]], str | None]


def validate_modules(
    checkpoint: str,
    target: ModuleExecutor,
    *,
    kinds: Sequence[str] | None = None,
    layers: Sequence[int] = (0,),
    dtype: torch.dtype = torch.bfloat16,
    plan: Plan | None = None,
    tolerances: Tolerances | None = None,
    on_failure: OnFailure | None = None,
    progress: Progress = lambda done, total, what: None,
) -> ModuleValidationResult:
    """Compare `target`'s modules three-way with those of `checkpoint` in FP32 and in `dtype`.

    A kernel that misses the documented rule by cut digits alone passes with a finding (`rounding`).

    `kinds` None takes every kind that the model has; a kind asked for by name that it lacks is "not measured". A module
    that fails to run is recorded and the others go on. `tolerances`, for instance a calibration's, may hold bounds of
    their own under `extra.modules`. `on_failure` may draw figures and returns their path.

    Raises ConfigurationError for an unknown kind, a layer that does not exist, bounds that are not usable.
    """
    plan, bounds = plan or Plan(), ModuleLimits.of(tolerances)
    chosen = module_kinds(kinds)
    checks: list[ModuleCheck] = []
    done: set[tuple[str, ...]] = set()
    with (
        HfModuleExecutor(checkpoint, torch.float32, stepwise=False) as fp32,
        HfModuleExecutor(checkpoint, dtype, stepwise=False) as expected,
    ):
        sides = _Sides(fp32, expected, target, dtype)
        for number, (layer, kind) in enumerate(itertools.product(layers, chosen)):
            progress(number, len(layers) * len(chosen), f"{kind}, layer {layer}")
            wiring = wire(kind, layer, fp32.taps(layer))
            if wiring is None:
                if kinds is not None:
                    checks.append(_unmeasured(kind, layer, "the model has no such module"))
            elif wiring.read not in done or wiring.feed:  # the embedding is the same for every layer
                done.add(wiring.read)
                checks += _check(wiring, sides, plan, bounds, on_failure)
    return ModuleValidationResult(
        target=target.name,
        dtype=str(dtype).removeprefix("torch."),
        seeds=plan.seeds,
        prefill=plan.prefill,
        decode=plan.decode,
        checks=checks,
    )


@dataclass(frozen=True)
class _Sides:
    fp32: HfModuleExecutor
    expected: HfModuleExecutor
    target: ModuleExecutor
    dtype: torch.dtype

    def run(self, wiring: Wiring, plan: Plan, seed: int) -> Compared:
        sizes = self.fp32.feature_sizes(wiring)
        given = seeded_input(wiring, sizes, self.fp32.config, self.dtype, plan, seed)
        return Compared(given, self.fp32.run(given), self.expected.run(given), self.target.run(given))


def _check(
    wiring: Wiring, sides: _Sides, plan: Plan, bounds: ModuleLimits, on_failure: OnFailure | None
) -> list[ModuleCheck]:
    try:
        compared = [sides.run(wiring, plan, seed) for seed in plan.numbers]
    except (NotMeasuredError, ConfigurationError) as error:
        return [_unmeasured(wiring.kind, wiring.layer, error.message)]
    found = []
    for phase in ("prefill", "decode")[: 1 + bool(plan.decode)]:
        check = _judge(wiring, phase, compared, bounds)
        if check.verdict is Verdict.FAIL and on_failure is not None:
            check = check.model_copy(update={"figure": on_failure(check, compared)})
        found.append(check)
    return found


def _judge(wiring: Wiring, phase: str, compared: list[Compared], bounds: ModuleLimits) -> ModuleCheck:
    base: dict[str, Any] = {
        "kind": wiring.kind, "layer": wiring.layer, "phase": phase, "taps": list(wiring.read), "inputs": len(compared),
    }  # fmt: skip
    sides: tuple[list[torch.Tensor], ...] = ([], [], [])
    for item in compared:
        for side, tensors in zip(sides, item.rows(phase), strict=True):
            side += tensors
    fp32, expected, target = sides
    try:
        result = closeness_three_way(fp32, expected, target, bounds=bounds)
    except ConfigurationError as error:  # shapes that differ are the target's fault; NaN on our side is not
        outcome = Outcome.NUMERICS if "shapes" in error.message else Outcome.NOT_MEASURED
        verdict = Verdict.FAIL if outcome is Outcome.NUMERICS else None
        return ModuleCheck(**base, outcome=outcome, verdict=verdict, reason=error.message)
    finding = digits_cut(fp32, expected, target, result, bounds) if module_kind(wiring.kind).kernel else ""
    verdict = Verdict.PASS if result.passed or finding else Verdict.FAIL
    relative = _relative(fp32, target)
    return ModuleCheck(**base, **_figures(result), verdict=verdict, finding=finding, relative_error=relative)


def _figures(result: ThreeWayCloseness) -> dict[str, Any]:
    return {
        "rule": result.passed,
        "sigma_ratio": result.sigma_ratio,
        "bc": result.bc,
        "worst_linf_ratio": result.worst_linf_ratio,
        "worst_l2_ratio": result.worst_l2_ratio,
        "lean": result.lean,
        "reason": result.reason,
    }


def _relative(fp32: list[torch.Tensor], target: list[torch.Tensor]) -> float:
    scale = max(float(want.abs().max()) for want in fp32)
    worst = max(float((got.float() - want.float()).abs().max()) for want, got in zip(fp32, target, strict=True))
    return worst / scale if scale else math.nan


def seeded_input(
    wiring: Wiring, sizes: dict[str, int], config: PreTrainedConfig, dtype: torch.dtype, plan: Plan, seed: int
) -> ModuleInput:
    """Rows from a normal distribution, rounded to the target's dtype so that every side gets the same numbers."""
    generator = torch.Generator().manual_seed(seed)
    count = plan.prefill + plan.decode
    vocabulary = config.get_text_config().vocab_size
    ids = torch.randint(vocabulary, (count,), generator=generator).tolist()
    rows = {
        tap: torch.randn(count, sizes[tap], generator=generator).to(dtype).float()
        for tap in (wiring.feed or (() if wiring.ids else (layer_input(wiring.layer),)))
    }
    return ModuleInput(wiring=wiring, token_ids=ids, prefill=plan.prefill, rows=rows)


def _unmeasured(kind: str, layer: int, reason: str) -> ModuleCheck:
    return ModuleCheck(kind=kind, layer=layer, phase="", outcome=Outcome.NOT_MEASURED, reason=reason)
