"""Calibrate one checkpoint or seeded model for one dtype: all measurements, then tolerances out of them."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import torch

from accuracy_core.calibration.determinism import determinism_floor
from accuracy_core.calibration.discrimination import measure_discrimination
from accuracy_core.calibration.document import Calibration
from accuracy_core.calibration.dtype_noise import DtypeNoise, dtype_noise
from accuracy_core.calibration.envelope import CleanEnvelope, clean_envelope
from accuracy_core.calibration.material import Inputs, Source, forward_rows
from accuracy_core.calibration.metric_choice import metric_choice
from accuracy_core.calibration.output_floor import DELTAS, measure_floor
from accuracy_core.calibration.quantisation import quantisation_noise
from accuracy_core.calibration.random_model import MOST_GROWTH, MOST_TRAINED_GROWTH, soundness
from accuracy_core.calibration.relative_error import per_seed_errors
from accuracy_core.calibration.seed_stability import SeedStability, check_seeds, seed_stability
from accuracy_core.calibration.span_audit import span_audit
from accuracy_core.calibration.tolerance import tolerance
from accuracy_core.calibration.variants import VARIANTS
from accuracy_core.errors import ConfigurationError
from accuracy_core.goldens.reference_model import torch_threads
from accuracy_core.numerics import default_tolerances
from accuracy_core.schemas import Tolerances

NARROW = ("bfloat16", "float16")
#: tensors whose span is written down
SPANS = 8
#: what is measured, in this order
STEPS = ("determinism", "dtype noise", "clean envelope", "discrimination", "quantisation", "spans and floor")
#: called with (steps done, steps in all, the one that begins)
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Subject:
    """What is calibrated, and how it is called."""

    source: Source
    name: str
    fingerprint: str
    dtype: str = "bfloat16"


def device_name() -> str:
    """The CPU with the instruction set that torch uses: other instructions round elsewhere."""
    return f"cpu {platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def calibrate(
    subject: Subject,
    inputs: Inputs,
    *,
    versions: dict[str, str],
    quantise: bool = True,
    progress: Progress = lambda done, total, what: None,
) -> Calibration:
    """Every measurement of one subject, on one thread; `quantise` False leaves the FP8 weights out.

    Raises ConfigurationError for fewer than 20 seeds, a dtype that is not narrower than FP32, or a model whose
    activations diverge (naming the layer).
    """
    if subject.dtype not in NARROW:
        raise ConfigurationError(
            f"{subject.dtype} has no noise against FP32 to calibrate", fix="calibrate bfloat16 or float16"
        )
    check_seeds(inputs.seeds)
    with torch_threads(1):
        return _measure(subject, inputs, versions, quantise, progress)


def _measure(
    subject: Subject, inputs: Inputs, versions: dict[str, str], quantise: bool, progress: Progress
) -> Calibration:
    dtype, rows = getattr(torch, subject.dtype), inputs.rows
    ids = inputs.ids(subject.source.settings.vocab_size)

    def begin(step: str) -> None:
        progress(STEPS.index(step), len(STEPS), step)

    fp32 = subject.source.build(torch.float32)
    most_growth = MOST_GROWTH if subject.source.checkpoint is None else MOST_TRAINED_GROWTH
    sound = soundness(fp32, ids[:4], most_growth=most_growth)  # first: nothing can be measured on a model that diverges
    begin("determinism")
    determinism = determinism_floor(subject.source, dtype, ids[:4], rows)
    narrow = subject.source.build(dtype)
    begin("dtype noise")
    noise = dtype_noise(fp32, narrow, ids, rows)
    reference = forward_rows(fp32, ids, rows)
    begin("clean envelope")
    variants = {name: variant.run(narrow, ids, rows) for name, variant in VARIANTS.items()}
    envelope = clean_envelope(reference, variants, subject.dtype)
    errors = {name: _deepest(noise, name).errors["all"] for name in VARIANTS}
    allowed = tolerance(determinism.floor, errors)
    begin("discrimination")
    worst = max(errors, key=errors.__getitem__)
    stability = seed_stability(per_seed_errors(variants[worst], reference), allowed)
    discriminated = measure_discrimination(narrow, ids[:8], rows, reference[:8], errors, allowed)
    begin("quantisation")
    quantisation = (
        quantisation_noise(fp32, narrow, torch.cat(reference), lambda model: torch.cat(forward_rows(model, ids, rows)))
        if quantise
        else None
    )
    begin("spans and floor")
    spans = {name: span_audit(parameter) for name, parameter in fp32.named_parameters() if parameter.ndim == 2}
    chosen = dict(sorted(spans.items(), key=lambda item: -item[1].energy_top)[:SPANS])
    return Calibration(
        model_fingerprint=subject.fingerprint,
        model_name=subject.name,
        dtype=subject.dtype,
        device=device_name(),
        versions=versions,
        date=datetime.now(UTC),
        seeds=inputs.seeds,
        tokens=inputs.tokens,
        rows=rows,
        soundness=sound,
        determinism=determinism,
        dtype_noise=noise,
        metric=metric_choice(reference, variants["fused"]),
        stability=stability,
        envelope=envelope,
        quantisation=quantisation,
        spans=chosen,
        output_floor=[measure_floor(delta) for delta in DELTAS],
        relative_tolerance=allowed,
        discrimination=discriminated,
        tolerances=tolerances_from(envelope, determinism.floor, subject, inputs),
        warnings=_warnings(determinism.floor, stability, envelope, discriminated.problems, chosen),
    )


def tolerances_from(envelope: CleanEnvelope, floor: float, subject: Subject, inputs: Inputs) -> Tolerances:
    """The shipped tolerances with what was measured in place: the static map at twice the worst clean row, row guards
    at the envelope's margin where that is above the shipped limit (which no clean run may be below)."""
    shipped = default_tolerances()
    top_k = {
        key: (atol, tolerance(floor, {"worst clean row": envelope.topk_error[key]}))
        for key, (atol, _) in shipped.top_k.items()
    }
    guards = shipped.guards.model_copy(
        update={
            "l2_ratio": max(shipped.guards.l2_ratio, envelope.margin * envelope.l2_ratio),
            "linf_ratio": max(shipped.guards.linf_ratio, envelope.margin * envelope.linf_ratio),
        }
    )
    origin = (
        f"calibrated: {subject.name} in {subject.dtype} on {device_name()}, {inputs.seeds} seeds, "
        f"{len(envelope.by_variant) + 1} variants"
    )
    provenance: dict[str, Any] = {
        **shipped.provenance,
        "top_k": f"{origin}; 2 x sqrt(noise floor^2 + error^2) of the worst row of the worst variant",
        "guards.l2_ratio": f"{origin}; {envelope.margin} x the clean envelope, at least as shipped",
        "guards.linf_ratio": f"{origin}; {envelope.margin} x the clean envelope, at least as shipped",
        "calibration": origin,
    }
    return shipped.model_copy(update={"top_k": top_k, "guards": guards, "provenance": provenance})


def _deepest(noise: list[DtypeNoise], variant: str) -> DtypeNoise:
    return max((item for item in noise if item.variant == variant), key=lambda item: item.depth)


def _warnings(
    floor: float, stability: SeedStability, envelope: CleanEnvelope, problems: list[str], spans: dict[str, Any]
) -> list[str]:
    found = []
    if floor > 0:
        found.append(f"the reference does not repeat itself: noise floor {floor:.1e}")
    if stability.headroom < 1:
        found.append(
            f"the worst of {stability.seeds} seeds is {1 / stability.headroom:.1f} times over the tolerance: a gate on "
            "single seeds would reject clean runs, judge over many"
        )
    if stability.tail_grows:
        found.append("the largest error still grows with the number of seeds: calibrate with more")
    if envelope.held_out_beyond:
        found.append(f"clean runs that the envelope was not fitted on: {envelope.bound}")
    found += problems
    found += [f"{name}: {problem}" for name, audit in spans.items() for problem in audit.problems]
    return found
