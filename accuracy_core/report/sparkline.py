"""Small line of a prompt's L2 ratio per token, as points of an SVG polyline."""

from __future__ import annotations

import math
from collections.abc import Sequence

from accuracy_core.schemas import RowMetrics

_WIDTH, _HEIGHT, _MOST = 120.0, 28.0, 60


def sparkline(rows: Sequence[RowMetrics], guard: float | None) -> dict[str, object] | None:
    """Points for a 120 × 28 box on a log scale from 0.5 to at least the guard; None when no ratio was measured."""
    values = [(row.token, row.l2_ratio) for row in rows if row.batch == 0 and not math.isnan(row.l2_ratio)]
    if not values:
        return None
    step = max(1, math.ceil(len(values) / _MOST))
    # the worst of each group: a thinned line must not lose the one bad token
    thinned = [max(values[i : i + step], key=lambda item: item[1]) for i in range(0, len(values), step)]
    top = max([guard or 3.0, *(value for _, value in thinned if math.isfinite(value))]) * 1.2
    last = max(len(thinned) - 1, 1)
    points = [f"{index * _WIDTH / last:.1f},{_y(value, top):.1f}" for index, (_, value) in enumerate(thinned)]
    if len(points) == 1:
        points.append(f"{_WIDTH},{points[0].split(',')[1]}")
    return {"points": " ".join(points), "guard": round(_y(guard, top), 1) if guard else None}


def _y(value: float, top: float) -> float:
    low = 0.5
    share = (math.log(min(max(value, low), top)) - math.log(low)) / (math.log(top) - math.log(low))
    return _HEIGHT - 1 - share * (_HEIGHT - 2)
