"""Which rows, heads and layers of a KV cache are beyond what the format's noise explains."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from accuracy_core.capture.kv.envelope import BaseEnvelope, Noise
from accuracy_core.capture.kv.limits import KvLimits
from accuracy_core.capture.kv.rows import KvRows, measure_rows
from accuracy_core.capture.kv.sides import KvSides, Which
from accuracy_core.capture.kv.written import not_as_given
from accuracy_core.numerics import bhattacharyya, error_ratio
from accuracy_core.numerics.pooled import typical_ratio


@dataclass(frozen=True)
class JudgedSide:
    """K or V of one layer, judged. Tensors are (heads, positions) unless said otherwise.

    `l2_ratio`, `linf_ratio`: error in units of the reference's own, floored. `relative`: L2 error over the size of f.
    `bad`: beyond noise; `odd`: beyond the row limit alone, which a jump of the noise may also reach. `typical` (heads,)
    geometric mean of the ratios, `typical_limit` its limit; `bc` (heads,) and `layer_bc` NaN where not measured.
    `wrong`: rows that differ from what attention was given to cache; None: that is not known.
    """

    layer: int
    which: Which
    rows: KvRows
    present: torch.Tensor
    noise: Noise
    l2_ratio: torch.Tensor
    linf_ratio: torch.Tensor
    relative: torch.Tensor
    odd: torch.Tensor
    bad: torch.Tensor
    typical: torch.Tensor
    typical_limit: float
    bc: torch.Tensor
    layer_bc: float
    row_limit: float
    wrong: torch.Tensor | None

    @property
    def bad_heads(self) -> torch.Tensor:
        """(heads,) bool: heads whose typical ratio is beyond its limit."""
        return self.typical >= self.typical_limit

    def bad_rows(self) -> torch.Tensor:
        """(heads, positions): rows to explain. All rows of heads that are only bad as a group."""
        rows = self.bad | (self.wrong if self.wrong is not None else False)
        group = self.bad_heads & ~rows.any(-1)
        return (rows | group[:, None]) & self.present

    def scale(self) -> float:
        """Root mean square of the L2 ratio: this side's sigma ratio."""
        base = self.noise.l2(self.rows)[:, self.present]
        return math.sqrt(float(self.rows.l2[:, self.present].square().sum() / base.square().sum().clamp(min=1e-300)))


def judge_side(
    layer: int,
    which: Which,
    sides: KvSides,
    *,
    noise: Noise,
    limits: KvLimits,
    envelope: BaseEnvelope,
    routed: bool,
    cache_dtype: str = "auto",
) -> JudgedSide:
    """Judge one layer's K or V.

    A row is bad when its L2 or L-inf ratio reaches the limit and its relative error exceeds `run_envelope` times the
    reference's largest in this layer, or when it holds a value that is not finite. Where the cache holds what attention
    was given, errors of rows were made before it, by modules that are judged by themselves, and the relative error must
    exceed `given_envelope` times the largest. Behind a router (`routed`) rows of
    equally right computations jump by as much as another expert makes: there the relative error must reach
    `routed_relative`, too, and a head's typical ratio `routed_head_ratio`.
    """
    rows = measure_rows(sides.fp32, sides.expected, sides.target)
    present = sides.present if sides.present is not None else torch.ones(rows.l2.shape[1], dtype=torch.bool)
    largest = envelope.add(layer, which, rows, noise)
    l2_ratio = error_ratio(rows.l2, noise.l2(rows), torch.zeros(()))
    linf_ratio = error_ratio(rows.linf, noise.linf(rows), torch.zeros(()))
    relative = torch.where(rows.l2 == 0, 0.0, rows.l2 / rows.ref_l2)
    odd = ((l2_ratio >= limits.l2_ratio) | (linf_ratio >= limits.linf_ratio)) & present
    wrong = not_as_given(sides, cache_dtype)
    row_limit = limits.run_envelope * largest
    if wrong is not None and not bool((wrong & present).any()):
        row_limit = limits.given_envelope * largest
    if routed:
        row_limit = max(row_limit, limits.routed_relative)
    non_finite = (rows.non_finite > 0) & present
    bad = (odd & (relative >= row_limit)) | non_finite
    kept = l2_ratio[:, present]
    count = kept.shape[1]
    # as for logits: a mean of n rows scatters sqrt(n) times less than they do
    limit = limits.head_ratio * math.exp(limits.head_z * limits.head_log_spread / math.sqrt(max(count, 1)))
    ceiling = limits.l2_ratio
    if routed:  # another expert at an early position changes every later row that attends to it
        limit, ceiling = limits.routed_head_ratio, limits.routed_head_ceiling
    return JudgedSide(
        layer=layer,
        which=which,
        rows=rows,
        present=present,
        noise=noise,
        l2_ratio=l2_ratio,
        linf_ratio=linf_ratio,
        relative=relative,
        odd=odd | non_finite,
        bad=bad,
        typical=torch.tensor([typical_ratio(head, ceiling) for head in kept], dtype=torch.float64),
        typical_limit=limit if count >= limits.head_min_rows else math.inf,
        bc=_overlap(rows, limits, noise),
        layer_bc=float(_overlap(rows, limits, noise, together=True)[0]),
        row_limit=row_limit,
        wrong=wrong,
    )


def _overlap(rows: KvRows, limits: KvLimits, noise: Noise, *, together: bool = False) -> torch.Tensor:
    assert rows.base_cells is not None
    assert rows.target_cells is not None
    base, target = rows.base_cells, rows.target_cells
    if together:
        base, target = base.sum(0, keepdim=True), target.sum(0, keepdim=True)
    if noise.share > 0:  # no reference with noise of its own: there is no distribution to overlap with
        return torch.full((len(base),), torch.nan, dtype=torch.float64)
    return bhattacharyya(base, target, min_samples=limits.bc_min_samples)
