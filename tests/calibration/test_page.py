"""The report of a calibration: self-contained, escaped, with every measurement."""

from __future__ import annotations

import json
import re

from accuracy_core.report.calibration_page import calibration_page, figures

HOSTILE = "</script><script>alert(1)</script>"


def test_the_page_holds_every_measurement_and_needs_nothing_else(measured):
    page = calibration_page(measured[0])
    for text in ("Determinism floor", "Noise of the dtype", "Spread over 20 seeds", "FP8 weights", "Spans", "Floor of"):
        assert text in page
    assert measured[0].id in page
    assert "default-src &#39;none&#39;" in page
    without_scripts = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert "://" not in without_scripts


def test_names_are_text(measured):
    found = measured[0].model_copy(update={"model_name": HOSTILE, "warnings": [HOSTILE]})
    assert HOSTILE not in calibration_page(found)


def test_figures_show_what_was_measured(measured):
    found = measured[0]
    drawn = figures(found)
    assert [trace["name"] for trace in drawn["noise"]["traces"]][:2] == ["fused", "eager"]
    assert drawn["noise"]["traces"][0]["x"] == [1, 2]
    one, largest = drawn["seeds"]["traces"]
    assert one["y"] == found.stability.errors
    assert largest["y"][-1] == found.stability.most
    assert largest["y"] == sorted(largest["y"])
    assert drawn["envelope"]["traces"][0]["y"] == [r.l2_ratio for r in found.envelope.by_variant.values()]
    assert drawn["envelope"]["lines"][0]["y"] == found.tolerances.guards.l2_ratio
    json.dumps(drawn, allow_nan=False)
