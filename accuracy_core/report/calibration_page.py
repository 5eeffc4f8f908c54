"""`calibration.html`: what was measured, drawn and in tables. A page that needs nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from accuracy_core.numerics import default_tolerances
from accuracy_core.report.inline import content_policy, inline
from accuracy_core.report.rendering import TEMPLATES, render, without_surrogates

if TYPE_CHECKING:
    from accuracy_core.calibration import Calibration


def calibration_page(calibration: Calibration) -> str:
    """HTML of the report of one calibration."""
    from plotly.offline import get_plotlyjs

    plotly = inline(get_plotlyjs())
    script = inline((TEMPLATES / "calibration.js").read_text(encoding="utf-8"))
    page = render(
        "calibration.html.j2",
        calibration=calibration,
        shipped=default_tolerances(),
        depths=sorted({item.depth for item in calibration.dtype_noise}),
        noise={(item.variant, item.depth): item for item in calibration.dtype_noise},
        figures=figures(calibration),
        # our own files, not input: they are inserted as they are
        plotly=Markup(plotly),
        script=Markup(script),
        style=Markup(inline((TEMPLATES / "report.css").read_text(encoding="utf-8"))),
        policy=content_policy(plotly, script),
    )
    return without_surrogates(page)


def figures(calibration: Calibration) -> dict[str, dict[str, Any]]:
    """Traces, axes and lines of each figure: id of its element -> what calibration.js draws."""
    return {
        "noise": _noise(calibration),
        "seeds": _seeds(calibration),
        "envelope": _envelope(calibration),
        "activations": {
            "traces": [{"name": "RMS", "y": calibration.soundness.rms, "mode": "lines+markers"}],
            "x": "layer", "y": "RMS of the residual stream", "log": True,
        },
    }  # fmt: skip


def _noise(calibration: Calibration) -> dict[str, Any]:
    variants = dict.fromkeys(item.variant for item in calibration.dtype_noise)
    traces = []
    for variant in variants:
        own = [item for item in calibration.dtype_noise if item.variant == variant]
        traces.append(
            {
                "name": variant.replace("_", " "),
                "x": [item.depth for item in own],
                "y": [item.errors["all"] for item in own],
                "mode": "lines+markers",
            }
        )
    lines = [{"y": calibration.relative_tolerance, "text": "tolerance"}]
    return {"traces": traces, "lines": lines, "x": "layers", "y": "relative error against FP32", "log": True}


def _seeds(calibration: Calibration) -> dict[str, Any]:
    """Every seed's error, and the largest so far: does it level off?"""
    errors = calibration.stability.errors
    largest = [max(errors[: count + 1]) for count in range(len(errors))]
    return {
        "traces": [
            {"name": "one seed", "y": errors, "mode": "markers"},
            {"name": "largest so far", "y": largest, "mode": "lines"},
        ],
        "lines": [{"y": calibration.relative_tolerance, "text": "tolerance"}],
        "x": "seed",
        "y": "relative error, all logits",
        "log": False,
    }


def _envelope(calibration: Calibration) -> dict[str, Any]:
    reach = calibration.envelope.by_variant
    guards = calibration.tolerances.guards
    names = [name.replace("_", " ") for name in reach]
    return {
        "traces": [
            {"name": "L2 ratio", "x": names, "y": [one.l2_ratio for one in reach.values()], "type": "bar"},
            {"name": "L-inf ratio", "x": names, "y": [one.linf_ratio for one in reach.values()], "type": "bar"},
        ],
        "lines": [
            {"y": guards.l2_ratio, "text": "L2 guard"},
            {"y": guards.linf_ratio, "text": "L-inf guard"},
        ],
        "x": "",
        "y": "largest ratio of a row to the noise",
        "log": False,
    }
