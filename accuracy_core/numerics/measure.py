"""Row metrics from what the passes over the vocabulary left."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from accuracy_core.numerics.agreement import top_overlap
from accuracy_core.numerics.bhattacharyya import bhattacharyya
from accuracy_core.numerics.choices import choose
from accuracy_core.numerics.log_histogram import histogram
from accuracy_core.numerics.plan import Plan
from accuracy_core.numerics.row_stats import RowStats
from accuracy_core.numerics.sweep import Sweep
from accuracy_core.numerics.topk_error import topk_errors


@dataclass(frozen=True)
class RowInputs:
    """The rows' logits as they were given, (rows, columns) in any float dtype, to look single entries up.

    `padding`: what the target has beyond the vocabulary, None if nothing; `sampled` (rows,) the target's ids or None;
    `prompt`, `batch`, `token` (rows,) int64.
    """

    f: torch.Tensor
    t: torch.Tensor
    padding: torch.Tensor | None
    sampled: torch.Tensor | None
    prompt: torch.Tensor
    batch: torch.Tensor
    token: torch.Tensor


@dataclass(frozen=True)
class Measured:
    """`rows`, and counts on the log grid: `base`, `target` (rows, cells) of `|e - f|` and `|t - f|`; `pair`, `head`
    (cells,) of the baseline's errors among likely tokens: between the likeliest and another, and at one of them."""

    rows: RowStats
    base: torch.Tensor
    target: torch.Tensor
    pair: torch.Tensor
    head: torch.Tensor


def measure(s: Sweep, inputs: RowInputs, plan: Plan) -> Measured:
    """Metrics of the rows of `s`."""
    stats = {
        "prompt": inputs.prompt,
        "batch": inputs.batch,
        "token": inputs.token,
        "count": s.count,
        "topk": topk_errors(s.slice_error, s.slice_size, plan.slices),
        "ref_linf": s.ref_linf,
        "ref_l2": s.ref_l2,
        "linf": s.linf,
        "l2": s.l2,
        "base_linf": s.base_linf,
        "base_l2": s.base_l2,
        "shift": s.shift,
        "slope": s.slope,
        "base_slope": s.base_slope,
        "bias": s.bias,
        "lean": s.lean,
        "base_lean": s.base_lean,
        "bc": bhattacharyya(s.base_cells, s.target_cells, min_samples=plan.bc_min_samples),
        "kl": s.kl,
        "top5_overlap": top_overlap(s.reference_ids[:, :5], s.target_ids),
        "winner_error": s.winner_error,
        "winner_size": s.reference_values[:, 0].abs(),
        "expected_top2": _top2(s.expected_values),
        "target_top2": _top2(s.target_values),
        "non_finite": s.non_finite,
        "mask_differs": s.mask_differs,
    }
    pair, head = _noise(s.contender_error)
    table = _table(stats | choose(s, inputs.f, inputs.t, inputs.padding, inputs.sampled))
    return Measured(table, s.base_cells.cpu(), s.target_cells.cpu(), pair.cpu(), head.cpu())


def _noise(contenders: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Histograms (cells,) of the baseline's error at contenders (rows, k) less that at the first, and of itself."""
    pair = contenders[:, 1:] - contenders[:, :1]
    return tuple(histogram(x.nan_to_num(0), x.isfinite()).sum(0) for x in (pair, contenders))  # type: ignore[return-value]


_IDS = ("reference_id", "expected_id", "target_id", "target_argmax", "padding_id")
_INTEGERS = frozenset({"prompt", "batch", "token", "non_finite", "mask_differs", *_IDS})


def _table(stats: dict[str, torch.Tensor]) -> RowStats:
    """Columns on the CPU in int64 or float64."""
    return RowStats(**{k: x.to("cpu", torch.int64 if k in _INTEGERS else torch.float64) for k, x in stats.items()})


def _top2(values: torch.Tensor) -> torch.Tensor:
    two = values[:, :2]
    return two if two.shape[1] == 2 else torch.cat([two, torch.full_like(two, torch.nan)], -1)
