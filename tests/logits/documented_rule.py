"""The documented verdict taken literally: an OR of three routes, equal-width bins, no guards. numpy, for comparison."""

from __future__ import annotations

import numpy as np
import torch

from accuracy_core.numerics import DEFAULT_TOLERANCE_MAP

from .float64_rows import row

_BINS = 100


def passes(f: torch.Tensor, e: torch.Tensor, t: torch.Tensor) -> bool | str:
    """Verdict for tensors (prompts, tokens, vocab); a word where the rule has no answer."""
    if t.shape[-1] != f.shape[-1]:
        return "error"
    rows = [(p, k) for p in range(f.shape[0]) for k in range(min(f.shape[1], t.shape[1]))]
    two_way, base, target = True, {}, {}
    for p, k in rows:
        x = [side[p, k].numpy() for side in (f, e, t)]
        if not all(np.isfinite(side[np.isfinite(x[0])]).all() for side in x):
            keep = np.isfinite(x[0]) & np.isfinite(x[1]) & np.isfinite(x[2])  # what does not compare drops out
            if not keep.any():
                continue
            x = [side[keep] for side in x]
        elif not np.isfinite(x[0]).all():
            x = [side[np.isfinite(x[0])] for side in x]
        two_way &= bool(row(*x, DEFAULT_TOLERANCE_MAP)["two_way"])
        design = np.stack([x[0], np.ones_like(x[0])], 1)
        for side, into in ((x[1], base), (x[2], target)):
            c = np.linalg.lstsq(design, side, rcond=None)[0][1]
            into.setdefault(k, []).append(np.abs(side - c - x[0]))
    squares = [sum(float((v.astype(np.float64) ** 2).sum()) for vs in s.values() for v in vs) for s in (target, base)]
    sigma = np.sqrt(squares[0] / squares[1]) if squares[1] else np.inf
    return bool(two_way or sigma <= 1.0 or min(_bc(base[k], target[k]) for k in base) >= 0.99)


def _bc(base: list[np.ndarray], target: list[np.ndarray]) -> float:
    b, t = np.concatenate(base), np.concatenate(target)
    span = (0.0, float(max(b.max(), t.max())) or 1.0)
    p, q = (np.histogram(x, _BINS, span)[0] / len(x) for x in (b, t))
    return float(np.sqrt(p * q).sum())
