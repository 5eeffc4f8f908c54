"""The formulas of the row metrics once more: numpy, float64, one row at a time, written without the product's code."""

from __future__ import annotations

import math

import numpy as np


def intercept_removed(ref: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, float, float]:
    """`x` less the intercept of `x = slope ref + c` by least squares; the slope and the intercept."""
    slope, c = np.linalg.lstsq(np.stack([ref, np.ones_like(ref)], 1), x, rcond=None)[0]
    return x - c, float(slope), float(c)


def ulp(x: float, bits: int = 7) -> float:
    return 2.0 ** (math.floor(math.log2(abs(x))) - bits) if x else 0.0


def row(f: np.ndarray, e: np.ndarray, t: np.ndarray, tol: dict[str, tuple[float, float]]) -> dict[str, float]:
    """Metrics of one finite three-way row (vocab,)."""
    f, e, t = (x.astype(np.float64) for x in (f, e, t))
    n = len(f)
    t_e, _, _ = intercept_removed(e, t)
    t_f, slope, shift = intercept_removed(f, t)
    e_f, _, _ = intercept_removed(f, e)
    order = np.argsort(-e, kind="stable")
    out: dict[str, float] = {}
    passed = True
    for key, (atol, rtol) in tol.items():
        ids = order if key == "all" else order[: min(int(key), n)]
        out[f"top{key}"] = (np.abs(t_e - e)[ids].max() - atol) / np.abs(e[ids]).max()
        passed &= out[f"top{key}"] <= rtol
    g, s = int(e.argmax()), int(t.argmax())
    out["gap"] = 0.0 if g == s else abs(t[s] - t[g])
    out["gap_limit"] = ulp(max(abs(t_e[s]), abs(t_e[g])))
    out["two_way"] = passed and (g == s or out["gap"] <= out["gap_limit"])
    base, target = e_f - f, t_f - f
    out["linf"], out["base_linf"] = np.abs(target).max() / np.abs(f).max(), np.abs(base).max() / np.abs(f).max()
    out["l2"], out["base_l2"] = (np.linalg.norm(x) / np.linalg.norm(f) for x in (target, base))
    out["linf_ratio"] = np.abs(target).max() / max(np.abs(base).max(), ulp(np.abs(f).max()))
    out["l2_ratio"] = np.linalg.norm(target) / max(np.linalg.norm(base), np.linalg.norm(f) * 2**-7 / math.sqrt(12))
    out["slope"], out["shift"] = slope, shift
    out["bias"] = float(np.mean(np.sign(f) * (t - f)))
    log_p, log_q = f - np.logaddexp.reduce(f), t - np.logaddexp.reduce(t)
    out["kl"] = float((np.exp(log_p) * (log_p - log_q)).sum())
    out["top1"] = int(f.argmax()) == s
    k = min(5, n)
    out["overlap"] = len(set(np.argsort(-f)[:k]) & set(np.argsort(-t)[:k])) / k
    out["target_sq"], out["base_sq"] = float((target**2).sum()), float((base**2).sum())
    return out
