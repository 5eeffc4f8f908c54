"""How far equally right runs are apart, as a family: what guards must let pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from pydantic import Field

from accuracy_core.calibration.material import Rows
from accuracy_core.errors import ConfigurationError
from accuracy_core.logits.compare import compare_prompts
from accuracy_core.numerics import bhattacharyya
from accuracy_core.numerics.log_histogram import histogram
from accuracy_core.schemas.base import Part

#: what is allowed beyond the fitted maximum: later seeds exceed a maximum of n by chance once in n
ENVELOPE_MARGIN = 1.5


@dataclass(frozen=True)
class _Run:
    l2_ratio: float
    linf_ratio: float
    kl: float
    topk: dict[str, float]

    def beyond(self, other: CleanEnvelope) -> list[str]:
        """Figures of this run that leave the envelope."""
        names = ("l2_ratio", "linf_ratio", "kl")
        return [name for name in names if getattr(self, name) > ENVELOPE_MARGIN * getattr(other, name)]


class VariantReach(Part):
    """Largest figures of one variant's runs, those that limits are fitted on and the held-out ones; smallest BC."""

    l2_ratio: float
    linf_ratio: float
    kl: float
    bc: float


class CleanEnvelope(Part):
    """What equally right runs reach, as a family: the maximum over variants and seeds that the limits were fitted on,
    and how often seeds that they were not fitted on go beyond `margin` times that."""

    l2_ratio: float
    linf_ratio: float
    kl: float
    least_bc: float
    topk_error: dict[str, float] = Field(description="largest static error of a row, per k of the tolerance map")
    by_variant: dict[str, VariantReach]
    fitted_runs: int
    held_out_runs: int
    held_out_beyond: int = Field(description="held-out runs with any figure beyond margin x the fitted maximum")
    margin: float
    bound: str = Field(description="what the number of held-out runs can say about the rate of false alarms")


def clean_envelope(fp32_rows: Rows, variants: Mapping[str, Rows], dtype: str, *, base: str = "fused") -> CleanEnvelope:
    """Every variant as the target, `base` as the expected side, FP32 as the baseline. Half of the seeds is held out.

    `dtype`: of the variants. Raises ConfigurationError for fewer than four seeds or a single variant.
    """
    others = [name for name in variants if name != base]
    seeds = len(fp32_rows)
    if seeds < 4 or not others:
        raise ConfigurationError(
            f"{seeds} seeds and {len(others)} variants beside {base!r} make no envelope",
            fix="use at least four seeds and two variants",
        )
    runs = {
        name: [_figures(fp32_rows[seed], variants[base][seed], variants[name][seed], dtype) for seed in range(seeds)]
        for name in others
    }
    fit = [run for of_variant in runs.values() for run in of_variant[::2]]
    held = [run for of_variant in runs.values() for run in of_variant[1::2]]
    reach = {
        name: VariantReach(
            l2_ratio=max(run.l2_ratio for run in own),
            linf_ratio=max(run.linf_ratio for run in own),
            kl=max(run.kl for run in own),
            bc=_bc(fp32_rows, variants[base], variants[name]),
        )
        for name, own in runs.items()
    }
    found = CleanEnvelope(
        l2_ratio=max(run.l2_ratio for run in fit),
        linf_ratio=max(run.linf_ratio for run in fit),
        kl=max(run.kl for run in fit),
        least_bc=min(one.bc for one in reach.values()),
        topk_error={key: max(run.topk[key] for run in fit) for key in fit[0].topk},
        by_variant=reach,
        fitted_runs=len(fit),
        held_out_runs=len(held),
        held_out_beyond=0,
        margin=ENVELOPE_MARGIN,
        bound="",
    )
    beyond = [names for run in held if (names := run.beyond(found))]
    return found.model_copy(update={"held_out_beyond": len(beyond), "bound": _bound(len(held), beyond)})


def _bound(runs: int, beyond: list[list[str]]) -> str:
    """What runs without an alarm can say (Hanley & Lippman-Hand 1983: the 95 % upper bound of the rate is 3/n), or in
    which figures there were some."""
    if not beyond:
        return f"no alarm in {runs} runs: the rate is below {min(1.0, 3 / runs):.1%} with 95 % confidence, no less"
    counts = Counter(name for names in beyond for name in names)
    told = ", ".join(f"{name} {count}" for name, count in counts.items())
    return f"{len(beyond)} of {runs} runs leave it ({told})"


def _figures(fp32: torch.Tensor, base: torch.Tensor, target: torch.Tensor, dtype: str) -> _Run:
    """Worst row of one run, by the comparison that the figures become limits of."""
    one = [fp32.unsqueeze(1)], [base.unsqueeze(1)], [target.unsqueeze(1)]
    rows = compare_prompts(*one, target_dtype=dtype).rows
    return _Run(
        l2_ratio=max(row.l2_ratio for row in rows),
        linf_ratio=max(row.linf_ratio for row in rows),
        kl=max(row.kl for row in rows),
        topk={key: max(row.topk_error[key] for row in rows) for key in rows[0].topk_error},
    )


def _bc(fp32: Rows, base: Rows, target: Rows) -> float:
    reference = torch.cat(fp32)
    sides = [histogram((torch.cat(side) - reference).flatten()[None]) for side in (base, target)]
    return float(bhattacharyya(sides[0], sides[1], min_samples=1))
