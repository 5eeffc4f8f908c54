"""What a failed module looks like: target against FP32, its errors beside the dtype's, and their quantiles."""

from __future__ import annotations

import html
from pathlib import Path

import torch

from accuracy_core.modules.validate import Compared
from accuracy_core.schemas import ModuleCheck

_POINTS = 4000
_QUANTILES = 200


def failure_page(folder: Path, check: ModuleCheck, compared: list[Compared]) -> str:
    """Write `<kind>-layer<L>-<phase>.html` with scatter, error histogram and QQ plot; returns its path.

    Self-contained (plotly.js inlined). Points are thinned evenly to a few thousand.
    """
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    sides: list[list[torch.Tensor]] = [[], [], []]
    for item in compared:
        for side, tensors in zip(sides, item.rows(check.phase), strict=True):
            side += [tensor.float().flatten() for tensor in tensors]
    fp32, expected, target = (torch.cat(side) for side in sides)
    base, error = expected - fp32, target - fp32
    keep = slice(None, None, max(1, len(fp32) // _POINTS))
    page = make_subplots(rows=1, cols=3, subplot_titles=("target against FP32", "error", "quantiles of |error|"))
    page.add_trace(
        go.Scattergl(x=fp32[keep].tolist(), y=target[keep].tolist(), mode="markers", name="target", marker={"size": 3}),
        1,
        1,
    )
    low, high = float(fp32.min()), float(fp32.max())
    page.add_trace(go.Scatter(x=[low, high], y=[low, high], mode="lines", name="equal"), 1, 1)
    for name, values in (("reference in the target's dtype", base), ("target", error)):
        page.add_trace(go.Histogram(x=values[keep].tolist(), name=name, opacity=0.6), 1, 2)
    steps = torch.linspace(0, 1, _QUANTILES)
    x, y = _quantiles(base, steps), _quantiles(error, steps)
    page.add_trace(go.Scatter(x=x, y=y, mode="markers", name="target against reference"), 1, 3)
    page.add_trace(go.Scatter(x=[0, max(x)], y=[0, max(x)], mode="lines", name="same noise"), 1, 3)
    page.update_layout(
        barmode="overlay",
        title=html.escape(f"{check.kind}, layer {check.layer}, {check.phase}: {check.reason}"),
        template="plotly_white",
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{check.kind}-layer{check.layer}-{check.phase}.html"
    page.write_html(path, include_plotlyjs=True)
    return str(path)


def _quantiles(values: torch.Tensor, steps: torch.Tensor) -> list[float]:
    ordered = values.abs().nan_to_num(nan=0.0, posinf=0.0).sort().values
    return ordered[(steps * (len(ordered) - 1)).long()].tolist()
