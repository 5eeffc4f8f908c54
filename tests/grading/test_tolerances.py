"""The shipped tolerances are what was measured, and separate right from wrong."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from accuracy_core.calibration.tolerance import LEAST_DISCRIMINATION, LEAST_MARGIN
from accuracy_core.grading import TASKS, calibrate_tasks
from accuracy_core.grading.task import TOLERANCES

SHIPPED = json.loads(TOLERANCES.read_text())["tasks"]


@pytest.mark.parametrize("name", list(TASKS))
def test_what_is_shipped_follows_from_its_figures(name):
    found = SHIPPED[name]
    assert found["tolerance"] == pytest.approx(2 * max(found["errors"].values()), rel=0.01)
    assert found["tolerance"] == TASKS[name].tolerance
    assert found["noise_floor"] == 0.0
    assert min(found["margins"].values()) >= LEAST_MARGIN
    assert set(found["discrimination"]) == {*calibrate_tasks.WRONG, *calibrate_tasks.SUBTLE}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TASKS))
def test_right_variants_pass_and_wrong_ones_are_far_over_it(name):
    """On sequences and weights that the tolerance was not measured on."""
    task = TASKS[name]
    weights = calibrate_tasks.make_weights(task.config, 7)
    want = calibrate_tasks.logits_of(
        calibrate_tasks.build_in(task.config, weights, calibrate_tasks._FP32), task.config, 900, task.steps
    )

    def error(build):
        got = calibrate_tasks.logits_of(build(task.config, weights), task.config, 900, task.steps)
        return calibrate_tasks.relative_error(got, want)

    for label, build in calibrate_tasks.RIGHT.items():
        assert error(build) < task.tolerance / LEAST_MARGIN, label
    for label, build in calibrate_tasks.WRONG.items():
        assert error(build) > LEAST_DISCRIMINATION * task.tolerance, label
    for label, build in calibrate_tasks.SUBTLE.items():
        assert error(build) > task.tolerance, label


def test_measuring_is_reproducible(monkeypatch):
    config, _ = calibrate_tasks.SHAPES["bf16"]
    tiny = replace(config, layers=1, hidden=64, ffn=64, heads=1, kv_heads=1, vocab=128, context=8)
    monkeypatch.setattr(calibrate_tasks, "SHAPES", {"tiny": (tiny, 2)})
    first, again = (calibrate_tasks.measure_task("tiny", seeds=2) for _ in range(2))
    assert first == again
    assert first["tolerance"] > 0
