"""Errors of one tapped tensor, summed over features: small enough to keep, enough to judge and to locate."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from accuracy_core.numerics.bhattacharyya import bhattacharyya
from accuracy_core.numerics.log_histogram import histogram


@dataclass(frozen=True)
class TensorError:
    """Sums over the features of each head, float64 (positions, heads); heads is 1 for taps that have none.

    With reference f, base b (the reference in the target's dtype) and target t, over elements where all are finite:
    `target` sum (t-f)^2, `base` sum (b-f)^2, `norm` sum f^2, `cross` sum (t-f) f, `base_cross` sum (b-f) f.
    `nonfinite` counts elements that are NaN or infinite in t and not in f. `linf`, `base_linf`, `peak` (positions,):
    max |t-f|, max |b-f|, max |f|.
    `histograms` int64 (2, positions, cells): of |b-f| and |t-f|.
    """

    target: torch.Tensor
    base: torch.Tensor
    norm: torch.Tensor
    cross: torch.Tensor
    base_cross: torch.Tensor
    nonfinite: torch.Tensor
    linf: torch.Tensor
    base_linf: torch.Tensor
    peak: torch.Tensor
    histograms: torch.Tensor

    @property
    def positions(self) -> int:
        return int(self.norm.shape[0])

    def rows(self, start: int, stop: int) -> TensorError:
        """The same for positions [start, stop)."""
        return self._select(slice(start, stop))

    def keep(self, rows: torch.Tensor) -> TensorError:
        """The same for the rows that `rows` bool (positions,) marks."""
        return self._select(rows)

    def _select(self, rows: slice | torch.Tensor) -> TensorError:
        values = {name: getattr(self, name)[rows] for name in _PER_ROW}
        return TensorError(**values, histograms=self.histograms[:, rows])

    def bc(self, min_samples: int) -> float:
        """Bhattacharyya coefficient of the two pooled error distributions; NaN below `min_samples` elements."""
        pooled = self.histograms.sum(1)
        return float(bhattacharyya(pooled[:1], pooled[1:], min_samples=min_samples)[0])


_PER_ROW = ("target", "base", "norm", "cross", "base_cross", "nonfinite", "linf", "base_linf", "peak")


def tensor_error(reference: torch.Tensor, base: torch.Tensor, target: torch.Tensor, heads: int = 1) -> TensorError:
    """Errors of (positions, features) tensors of one shape, computed in float32, or float64 for a float64 reference.

    `heads` must divide the features, else 1 is taken.
    """
    working = torch.float64 if torch.float64 in (reference.dtype, target.dtype) else torch.float32
    f, b, t = (item.detach().to("cpu", working) for item in (reference, base, target))
    positions, features = f.shape
    groups = heads if heads > 0 and features % heads == 0 else 1
    finite = torch.isfinite(t) & torch.isfinite(f) & torch.isfinite(b)
    wrong = ~torch.isfinite(t) & torch.isfinite(f)
    zero = torch.zeros((), dtype=working)
    error, base_error = (torch.where(finite, item - f, zero) for item in (t, b))
    f = torch.where(finite, f, zero)

    def total(product: torch.Tensor) -> torch.Tensor:
        return product.reshape(positions, groups, -1).sum(-1, dtype=torch.float64)

    return TensorError(
        target=total(error.square()),
        base=total(base_error.square()),
        norm=total(f.square()),
        cross=total(error * f),
        base_cross=total(base_error * f),
        nonfinite=wrong.reshape(positions, groups, -1).sum(-1),
        linf=_peak(error),
        base_linf=_peak(base_error),
        peak=_peak(f),
        histograms=torch.stack([histogram(base_error, finite), histogram(error, finite)]),
    )


def _peak(values: torch.Tensor) -> torch.Tensor:
    return values.abs().amax(-1).double() if values.numel() else values.new_zeros(values.shape[0], dtype=torch.float64)
