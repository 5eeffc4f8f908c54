"""Guards over many rows: an excess that no single row shows, because rows scatter more than the excess.

Clean rows scatter by `row_log_spread` in log L2 ratio. The geometric mean of n of them scatters sqrt(n) times less, so
its limit may lie as much lower: `pooled_l2_ratio * exp(pooled_z * row_log_spread / sqrt(n))`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from accuracy_core.numerics.guards import Ratios
from accuracy_core.numerics.row_stats import RowStats
from accuracy_core.numerics.student import ClusteredMean, clustered_mean
from accuracy_core.schemas import GuardHit, Tolerances
from accuracy_core.schemas.tolerances import Guards

_LOWEST_RATIO = 0.25  # a row much better than BF16 must not hide others


@dataclass(frozen=True)
class Group:
    """Rows that are judged together. -1: over all prompts, or over all tokens."""

    prompt: int
    token: int
    rows: int
    typical: float
    limit: float


def typical_ratio(l2_ratio: torch.Tensor, ceiling: float) -> float:
    """Geometric mean of L2 ratios (rows,), each cut to [0.25, ceiling]; NaN if there is none."""
    if not len(l2_ratio):
        return math.nan
    return float(_logs(l2_ratio, ceiling).mean().exp())


def _logs(l2_ratio: torch.Tensor, ceiling: float) -> torch.Tensor:
    return l2_ratio.nan_to_num(nan=ceiling).clamp(_LOWEST_RATIO, ceiling).log()


def pooled_limit(rows: int, guards: Guards) -> float:
    """Largest typical ratio of `rows` clean rows; infinite for groups too small to be judged."""
    if guards.pooled_l2_ratio is None or rows < guards.pooled_min_rows:
        return math.inf
    return guards.pooled_l2_ratio * scatter(rows, guards)


def scatter(rows: int, guards: Guards) -> float:
    """Factor within which the geometric mean of `rows` clean ratios stays."""
    return math.exp(guards.pooled_z * guards.row_log_spread / math.sqrt(max(rows, 1)))


def groups(rows: RowStats, ratio: Ratios, guards: Guards) -> list[Group]:
    """The whole run, every prompt, every generation index."""
    logs = _logs(ratio.l2, guards.l2_ratio)
    made = [_group(-1, -1, float(logs.sum()), len(rows), guards)]
    for key, per_prompt in ((rows.prompt, True), (rows.token, False)):
        ids, inverse, n = key.unique(return_inverse=True, return_counts=True)
        sums = torch.zeros(len(ids), dtype=torch.float64).index_add_(0, inverse, logs)
        for i, s, count in zip(ids.tolist(), sums.tolist(), n.tolist(), strict=True):
            made.append(_group(i if per_prompt else -1, -1 if per_prompt else i, s, count, guards))
    return made


def _group(prompt: int, token: int, log_sum: float, n: int, guards: Guards) -> Group:
    return Group(prompt, token, n, math.exp(log_sum / n), pooled_limit(n, guards))


def pooled_hits(found: list[Group]) -> list[GuardHit]:
    """Groups whose typical L2 ratio reaches its limit."""
    return [
        GuardHit(guard="pooled_l2_ratio", prompt=g.prompt, token=g.token, value=g.typical, limit=g.limit,
                 detail=f"typical L2 ratio of {g.rows} rows")
        for g in found
        if g.typical >= g.limit
    ]  # fmt: skip


def lean_test(rows: RowStats, floor: torch.Tensor) -> ClusteredMean:
    """Does the target lean towards or away from zero more than the baseline does?

    Per row: signed bias of the target minus that of the baseline, the constant's part taken out (softmax ignores it),
    in units of the base noise's RMS (floored by `floor` (rows,), an L2 norm). Cut to [-1, 1],
    so that no single row decides; mean with a standard error clustered by prompt.
    """
    rms = torch.maximum(rows.base_l2, floor) / rows.count.sqrt()
    return clustered_mean(((rows.lean - rows.base_lean) / rms).clamp(-1, 1), rows.prompt)


def bias_hits(test: ClusteredMean, tolerances: Tolerances) -> list[GuardHit]:
    """A hit when the lean is both beyond accident and large enough to matter."""
    limits = tolerances.guards
    if limits.bias_p is None or not (test.p < limits.bias_p and abs(test.mean) >= limits.bias_noise_share):
        return []
    return [
        GuardHit(guard="signed_bias", prompt=-1, token=-1, value=test.mean, limit=limits.bias_noise_share,
                 detail=f"mean lean in units of the base noise, t = {test.t:.1f} over {test.clusters} prompts")
    ]  # fmt: skip
