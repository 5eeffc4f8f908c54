"""The documented four panels and the three-way ratio panels, as plotly figures built from rows."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from accuracy_core.numerics.defaults import default_tolerances
from accuracy_core.schemas import RowMetrics, Tolerances

if TYPE_CHECKING:
    import plotly.graph_objects as go

_EXPECTED, _ACTUAL, _DIVERGED, _GUARD, _DIAGNOSTIC = "cyan", "hotpink", "orange", "crimson", "gray"
_PER_K = ("#1f77b4", "#2ca02c", "#9467bd", "#8c564b", "#7f7f7f")


def logit_panels(rows: Sequence[RowMetrics], tokens: Sequence[str] | None = None) -> go.Figure:
    """Four panels over the generation index of one prompt and batch row.

    Top to bottom: error map (top-k error per k, orange vertical lines where the choices diverge); top1 - top2 gap of
    expected and actual against the ULP; top-1 ids (expected cyan, actual pink); values of the two largest logits.
    `tokens`: decoded text per row, shown on hover (escaped here).
    """
    rows = sorted(rows, key=lambda r: r.token)
    x, text = [r.token for r in rows], _hover(rows, tokens)
    figure = _figure(
        ["Error map: relative error per top-k", "Top1 - top2 gap against the ULP", "Top-1 token ids", "Top-2 logits"]
    )
    keys = list(rows[0].topk_error) if rows else []
    for i, key in enumerate(keys):
        _line(figure, 1, x, [r.topk_error[key] for r in rows], f"k={key}", _PER_K[i % len(_PER_K)], text)
    _line(figure, 2, x, [_gap(r.expected_top2) for r in rows], "expected gap", _EXPECTED, text)
    _line(figure, 2, x, [_gap(r.target_top2) for r in rows], "actual gap", _ACTUAL, text)
    _line(figure, 2, x, [r.ulp for r in rows], "ULP", _DIAGNOSTIC, text, dash="dot")
    _line(figure, 3, x, [r.expected_id for r in rows], "expected top-1", _EXPECTED, text)
    _line(figure, 3, x, [r.target_id for r in rows], "actual top-1", _ACTUAL, text, dash="dash")
    for i in (0, 1):
        dash = "solid" if i == 0 else "dot"
        expected = [_entry(r.expected_top2, i) for r in rows]
        _line(figure, 4, x, expected, f"expected top-{i + 1} logit", _EXPECTED, text, dash=dash)
        actual = [_entry(r.target_top2, i) for r in rows]
        _line(figure, 4, x, actual, f"actual top-{i + 1} logit", _ACTUAL, text, dash=dash)
    for r in rows:
        if r.diverged:
            figure.add_vline(x=r.token, line_color=_DIVERGED, line_width=1, row=1, col=1)
    _axes(figure, ["relative error", "logit difference", "token id", "logit"], log=(1,))
    return figure


def ratio_panels(
    rows: Sequence[RowMetrics], tokens: Sequence[str] | None = None, *, tolerances: Tolerances | None = None
) -> go.Figure:
    """Three-way panels over the generation index: L-inf and L2 ratio, BC, KL, with guard lines (crimson, dashed) and
    the diagnostic multipliers (gray, dotted). Rows on which a guard fired carry a crimson cross.
    """
    rows = sorted(rows, key=lambda r: r.token)
    limits = tolerances or default_tolerances()
    x, text = [r.token for r in rows], _hover(rows, tokens)
    figure = _figure(["Error ratios, target over BF16", "Bhattacharyya coefficient", "KL(FP32 || target)"])
    _line(figure, 1, x, [r.linf_ratio for r in rows], "L-inf ratio", "#d62728", text)
    _line(figure, 1, x, [r.l2_ratio for r in rows], "L2 ratio", "#1f77b4", text)
    _line(figure, 2, x, [r.bc for r in rows], "BC", "#2ca02c", text)
    _line(figure, 3, x, [r.kl for r in rows], "KL", "#9467bd", text)
    bad = [r for r in rows if r.bad]
    if bad:
        figure.add_scatter(
            x=[r.token for r in bad], y=[_finite(r.l2_ratio) for r in bad], mode="markers", name="guard fired",
            marker={"symbol": "x", "color": _GUARD, "size": 9},
            text=[html.escape(", ".join(h.guard for h in r.guards)) for r in bad],
            hovertemplate="token %{x}: %{text}<extra></extra>", row=1, col=1,
        )  # fmt: skip
    for y, row, color, name in (
        (limits.guards.l2_ratio, 1, "#1f77b4", "L2 guard"),
        (limits.guards.linf_ratio, 1, "#d62728", "L-inf guard"),
        (limits.aggregate.linf_ratio, 1, _DIAGNOSTIC, "diagnostic multiplier"),
        (limits.aggregate.bc, 2, _DIAGNOSTIC, "pooled BC limit"),
    ):
        _limit(figure, row, x, y, name, color, "dot" if color == _DIAGNOSTIC else "dash")
    _axes(figure, ["ratio", "BC", "nats"], log=(1, 3))
    return figure


def _figure(titles: list[str]) -> go.Figure:
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=len(titles), cols=1, shared_xaxes=True, vertical_spacing=0.06, subplot_titles=titles)
    figure.update_layout(height=230 * len(titles), margin={"l": 60, "r": 20, "t": 40, "b": 40}, hovermode="x unified")
    return figure


def _line(
    figure: go.Figure,
    row: int,
    x: list[int],
    y: Sequence[float],
    name: str,
    color: str,
    text: list[str],
    dash: str = "",
) -> None:
    figure.add_scatter(
        x=x, y=[_finite(v) for v in y], mode="lines+markers", name=name, text=text,
        line={"color": color, "dash": dash or "solid"}, marker={"size": 4},
        hovertemplate="%{y}%{text}<extra>" + name + "</extra>", row=row, col=1,
    )  # fmt: skip


def _limit(figure: go.Figure, row: int, x: list[int], y: float, name: str, color: str, dash: str) -> None:
    """A horizontal line as a trace: on a logarithmic axis plotly misplaces the labels of shapes."""
    figure.add_scatter(
        x=[x[0], x[-1]] if x else [], y=[y, y] if x else [], mode="lines", name=f"{name} {y:g}", hoverinfo="skip",
        line={"color": color, "dash": dash, "width": 1}, row=row, col=1,
    )  # fmt: skip


def _axes(figure: go.Figure, titles: list[str], log: Sequence[int]) -> None:
    """Titles of the panels; those in `log` (1-based) get a logarithmic axis, so that one outlier leaves the rest
    visible.
    """
    for i, title in enumerate(titles, start=1):
        figure.update_yaxes(title_text=title, type="log" if i in log else "linear", row=i, col=1)
    figure.update_xaxes(title_text="token (generation index)", row=len(titles), col=1)


def _hover(rows: Sequence[RowMetrics], tokens: Sequence[str] | None) -> list[str]:
    """Decoded text is what a model produced and plotly reads HTML in it: escaped, and made visible by repr."""
    if tokens is None:
        return [""] * len(rows)
    return [f" · {html.escape(repr(tokens[r.token]))}" if r.token < len(tokens) else "" for r in rows]


def _finite(value: float) -> Any:
    """Gaps in a line stand for what is not finite: JSON has no number for it."""
    return value if math.isfinite(value) else None


def _gap(top2: list[float]) -> float:
    return top2[0] - top2[1] if len(top2) == 2 else math.nan


def _entry(top2: list[float], i: int) -> float:
    return top2[i] if i < len(top2) else math.nan
