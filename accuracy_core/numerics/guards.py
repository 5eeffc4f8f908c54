"""Guards: what no rescue route can outvote. Each is a limit per row, evaluated over all rows at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from accuracy_core.numerics.log_histogram import quantile
from accuracy_core.numerics.norms import error_ratio, l2_floor, linf_floor
from accuracy_core.numerics.plan import Plan
from accuracy_core.numerics.precision import ulp
from accuracy_core.numerics.row_stats import RowStats
from accuracy_core.numerics.stream import RunStats
from accuracy_core.schemas import GuardHit, Tolerances


@dataclass(frozen=True)
class RowGuard:
    """`fired`, `value`, `limit` (rows,) of one guard."""

    name: str
    fired: torch.Tensor
    value: torch.Tensor
    limit: torch.Tensor
    detail: str


@dataclass(frozen=True)
class Ratios:
    """Error of the target in units of the baseline's, (rows,) each; NaN in two-way mode."""

    linf: torch.Tensor
    l2: torch.Tensor


def ratios(rows: RowStats, bits: int) -> Ratios:
    """L-inf and L2 ratio of every row, the base error floored at the rounding of the target's format."""
    return Ratios(
        linf=error_ratio(rows.linf, rows.base_linf, linf_floor(rows.ref_linf, bits)),
        l2=error_ratio(rows.l2, rows.base_l2, l2_floor(rows.ref_l2, bits)),
    )


def row_guards(run: RunStats, ratio: Ratios, plan: Plan, tolerances: Tolerances) -> list[RowGuard]:
    """All guards that look at single rows; those that need a baseline are left out in two-way mode."""
    rows = run.rows
    zero = torch.zeros(len(rows), dtype=torch.float64)
    guards = [
        _at_least("non_finite", rows.non_finite.double(), zero + 1, "NaN or +inf where the reference is finite"),
        _at_least("mask_differs", rows.mask_differs.double(), zero + 1, "vocabulary positions masked on one side only"),
        RowGuard("padding_wins", rows.padding_id >= 0, rows.padding_id.double(), zero + plan.vocab,
                 "an id beyond the tokenizer's vocabulary wins"),
    ]  # fmt: skip
    if not plan.three_way:
        return guards
    limits = tolerances.guards
    bound = _envelope(rows.base_l2, rows.ref_l2, l2_floor(rows.ref_l2, plan.bits), limits.l2_run_envelope)
    guards.append(_at_least("l2_ratio", ratio.l2, bound.clamp(min=limits.l2_ratio), "||t - f|| over ||b - f||"))
    bound = _envelope(rows.base_linf, rows.ref_linf, linf_floor(rows.ref_linf, plan.bits), limits.linf_run_envelope)
    guards.append(
        _at_least("linf_ratio", ratio.linf, bound.clamp(min=limits.linf_ratio), "max |t - f| over max |b - f|")
    )
    noise = quantile(run.pair, limits.flip_noise_quantile)
    bound = tolerances.n_ulps * ulp(rows.flip_size, plan.bits) + limits.flip_noise_multiple * _known(noise)
    guards.append(
        RowGuard("argmax_flip", rows.flip_gap > bound, rows.flip_gap, bound,
                 "the reference's winner leads the target's choice by more than noise explains")
    )  # fmt: skip
    if limits.winner_noise_multiple is not None:
        noise = quantile(run.head, limits.flip_noise_quantile)
        bound = tolerances.n_ulps * ulp(rows.winner_size, plan.bits) + limits.winner_noise_multiple * _known(noise)
        guards.append(
            RowGuard("winner_error", rows.winner_error > bound, rows.winner_error, bound,
                     "the logit of the reference's winner is off by more than noise explains")
        )  # fmt: skip
    return guards


def _at_least(name: str, value: torch.Tensor, limit: torch.Tensor, detail: str) -> RowGuard:
    return RowGuard(name, value >= limit, value, limit, detail)


def _envelope(base: torch.Tensor, size: torch.Tensor, floor: torch.Tensor, multiple: float) -> torch.Tensor:
    """(rows,) ratio at which a row's error is `multiple` times the largest relative base error of the whole run.

    BF16 noise jumps: where one rounding tips a large activation, a row's error is several times that of its
    neighbours, and the baseline and the target take such jumps on different rows. A single row is therefore only
    beyond noise when its error exceeds what the baseline itself does somewhere in the run. Where base errors are alike
    in all rows (`max / own` near 1) this is below the limit proper and changes nothing.
    """
    relative = torch.where(size > 0, torch.maximum(base, floor) / size, 0.0)
    worst = relative.max() if len(relative) else relative.new_zeros(())
    return torch.where(relative > 0, multiple * worst / relative, 0.0)


def _known(noise: float) -> float:
    return noise if noise == noise else 0.0


def hits(rows: RowStats, guards: list[RowGuard]) -> Iterator[tuple[int, GuardHit]]:
    """(row, hit) of every guard that fired."""
    for guard in guards:
        for i in guard.fired.nonzero().flatten().tolist():
            yield (
                i,
                GuardHit(
                    guard=guard.name,
                    prompt=int(rows.prompt[i]),
                    batch=int(rows.batch[i]),
                    token=int(rows.token[i]),
                    value=float(guard.value[i]),
                    limit=float(guard.limit[i]),
                    detail=guard.detail,
                ),
            )
