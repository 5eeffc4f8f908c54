"""A judged side as numbers for the result file."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from accuracy_core.capture.kv.judge import JudgedSide
from accuracy_core.numerics import error_ratio
from accuracy_core.outcome import Verdict
from accuracy_core.schemas import GuardHit, KvHeadMetrics

_ZERO = torch.zeros(())


def head_metrics(side: JudgedSide) -> list[KvHeadMetrics]:
    """One entry per KV head, over the positions that are present."""
    rows, here = side.rows, side.present
    size, largest = _norm(rows.ref_l2, here), _largest(rows.ref_linf, here)
    l2, base_l2 = _norm(rows.l2, here), _norm(rows.base_l2, here)
    linf, base_linf = _largest(rows.linf, here), _largest(rows.base_linf, here)
    columns = {
        "cosine": rows.head_cosine(here),
        "l2": _share(l2, size),
        "linf": _share(linf, largest),
        "base_l2": _share(base_l2, size),
        "base_linf": _share(base_linf, largest),
        "l2_ratio": error_ratio(l2, _norm(side.noise.l2(rows), here), _ZERO),
        "linf_ratio": error_ratio(linf, _largest(side.noise.linf(rows), here), _ZERO),
        "bc": side.bc,
    }
    bad = (side.bad_rows().any(-1)).tolist()
    lists = {name: column.tolist() for name, column in columns.items()}
    return [
        KvHeadMetrics(
            layer=side.layer,
            head=head,
            which=side.which,
            verdict=Verdict.FAIL if bad[head] else Verdict.PASS,
            **{name: values[head] for name, values in lists.items()},
        )
        for head in range(len(bad))
    ]


def position_ratios(side: JudgedSide) -> list[float]:
    """L2 ratio of all heads together at each position; NaN where the row is no longer present."""
    ratio = error_ratio(_sum(side.rows.l2), _sum(side.noise.l2(side.rows)), _ZERO)
    return [value if here else math.nan for value, here in zip(ratio.tolist(), side.present.tolist(), strict=True)]


def guard_hits(side: JudgedSide, prompt: int, prompt_length: int) -> Iterator[GuardHit]:
    """The worst row of each guard with the number of rows that it hit, and the worst head."""
    non_finite = (side.rows.non_finite > 0) & side.present
    judged = side.bad & ~non_finite
    for guard, fired, value, limit, text in (
        ("non_finite", non_finite, side.rows.non_finite.double(), 1.0, "values that are NaN or infinite"),
        ("cache_write", side.wrong, side.relative, 0.0, "the cached row is not what attention was given"),
        ("kv_l2_ratio", judged, side.l2_ratio, math.nan, "L2 error of the row over the reference's"),
    ):
        if fired is None or not bool(fired.any()):
            continue
        place = int(torch.where(fired, value.nan_to_num(nan=math.inf), -1.0).argmax())
        head, position = divmod(place, fired.shape[1])
        yield GuardHit(
            guard=guard,
            prompt=prompt,
            token=position - prompt_length if position >= prompt_length else -1,
            value=float(value[head, position]),
            limit=_row_limit(side, head, position) if math.isnan(limit) else limit,
            detail=f"layer {side.layer} {side.which}, head {head}, position {position}: {text}; "
            f"{int(fired.sum())} rows in all",
        )
    heads = side.bad_heads & ~side.bad.any(-1)
    if bool(heads.any()):
        head = int(torch.where(heads, side.typical, -1.0).argmax())
        yield GuardHit(
            guard="kv_head_ratio",
            prompt=prompt,
            token=-1,
            value=float(side.typical[head]),
            limit=side.typical_limit,
            detail=f"layer {side.layer} {side.which}, head {head}: typical L2 ratio over {int(side.present.sum())} "
            f"positions; {int(heads.sum())} heads in all",
        )


def _row_limit(side: JudgedSide, head: int, position: int) -> float:
    """The ratio at which this row would have been bad."""
    relative = float(side.relative[head, position])
    return side.row_limit * float(side.l2_ratio[head, position]) / relative if relative > 0 else math.nan


def _norm(x: torch.Tensor, here: torch.Tensor) -> torch.Tensor:
    return x[:, here].square().sum(-1).sqrt()


def _sum(x: torch.Tensor) -> torch.Tensor:
    return x.square().sum(0).sqrt()


def _largest(x: torch.Tensor, here: torch.Tensor) -> torch.Tensor:
    kept = x[:, here]
    return kept.amax(-1) if kept.shape[1] else torch.full((len(x),), torch.nan, dtype=x.dtype)


def _share(size: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    return torch.where(size == 0, 0.0, size / reference)
