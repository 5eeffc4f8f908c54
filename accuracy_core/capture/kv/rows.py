"""Errors of one layer's K or V per head and position, in one vectorised pass over both sides."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from accuracy_core.numerics.log_histogram import histogram

#: values per chunk: its few temporaries stay in a core's cache
_CHUNK = 1 << 16


@dataclass(frozen=True)
class KvRows:
    """f: FP32, b: the reference in the target's dtype, t: target. (heads, positions) float64 unless said otherwise.

    Norms and largest magnitudes over head_dim of f, t, t - f and b - f; `non_finite` int64: values of t that are NaN or
    infinite. `base_cells`, `target_cells` (heads, cells): histograms of |b - f| and |t - f|, None if not asked for.
    """

    ref_l2: torch.Tensor
    ref_linf: torch.Tensor
    target_l2: torch.Tensor
    l2: torch.Tensor
    linf: torch.Tensor
    base_l2: torch.Tensor
    base_linf: torch.Tensor
    non_finite: torch.Tensor
    base_cells: torch.Tensor | None = None
    target_cells: torch.Tensor | None = None

    def cosine(self) -> torch.Tensor:
        """Cosine similarity of t and f per row, from `2 t.f = |t|^2 + |f|^2 - |t - f|^2`; NaN where either is zero."""
        return _cosine(self.target_l2.square(), self.ref_l2.square(), self.l2.square())

    def head_cosine(self, present: torch.Tensor | None = None) -> torch.Tensor:
        """(heads,) cosine similarity over the positions that are present together."""
        t, f, e = (
            (x if present is None else x[:, present]).square().sum(-1) for x in (self.target_l2, self.ref_l2, self.l2)
        )
        return _cosine(t, f, e)


def _cosine(t_sq: torch.Tensor, f_sq: torch.Tensor, e_sq: torch.Tensor) -> torch.Tensor:
    return ((t_sq + f_sq - e_sq) / (2 * (t_sq * f_sq).sqrt())).clamp(-1.0, 1.0)


def measure_rows(
    fp32: torch.Tensor, expected: torch.Tensor, target: torch.Tensor, *, histograms: bool = True
) -> KvRows:
    """Row errors of (heads, positions, head_dim) tensors of one shape, any float dtype; the inputs are not changed."""
    heads, positions, width = fp32.shape
    sides = [x.reshape(-1, width) for x in (fp32, expected, target)]
    step = max(1, _CHUNK // max(width, 1))
    columns = torch.empty((7, heads * positions), dtype=torch.float64)
    for start in range(0, heads * positions, step):
        f, b, t = (x[start : start + step].to(torch.float32) for x in sides)
        for row, value in enumerate(_norms(f, b, t)):
            columns[row, start : start + step] = value
    shaped = columns.view(7, heads, positions)
    ref_l2, ref_linf, target_l2, l2, linf, base_l2, base_linf = shaped.unbind(0)
    return KvRows(
        ref_l2=ref_l2,
        ref_linf=ref_linf,
        target_l2=target_l2,
        l2=l2,
        linf=linf,
        base_l2=base_l2,
        base_linf=base_linf,
        non_finite=_non_finite(target, l2),
        base_cells=_cells(fp32, expected) if histograms else None,
        target_cells=_cells(fp32, target) if histograms else None,
    )


def _norms(f: torch.Tensor, b: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, ...]:
    norm = torch.linalg.vector_norm
    error, base = t - f, b - f
    # abs and amax: fifteen times faster than vector_norm of order infinity
    return (
        norm(f, dim=-1), f.abs().amax(-1), norm(t, dim=-1), norm(error, dim=-1), error.abs_().amax(-1),
        norm(base, dim=-1), base.abs_().amax(-1),
    )  # fmt: skip


def _cells(fp32: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    error = (other.float() - fp32.float()).flatten(1)
    return histogram(error.nan_to_num(0.0), error.isfinite())


def _non_finite(target: torch.Tensor, l2: torch.Tensor) -> torch.Tensor:
    """Counts per row; looked at closely only where the norm is not finite."""
    counts = torch.zeros(l2.shape, dtype=torch.int64)
    bad = ~l2.isfinite()
    if bool(bad.any()):
        counts[bad] = (~target[bad].float().isfinite()).sum(-1)
    return counts
