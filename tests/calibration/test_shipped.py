"""The default tolerances and the calibration that they name belong together."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from accuracy_core.calibration import read_calibration
from accuracy_core.models import model_fingerprint
from accuracy_core.numerics import default_tolerances


@pytest.fixture(scope="module")
def shipped():
    return read_calibration(Path(str(resources.files("accuracy_core.calibration") / "shipped/embedded-bfloat16.json")))


def test_the_provenance_names_the_file_by_its_content(shipped):
    said = str(default_tolerances().provenance["calibration"])
    assert said.startswith(f"shipped/embedded-bfloat16.json, id {shipped.id}:")
    assert f"{shipped.seeds} seeds" in said


def test_it_is_of_the_model_that_is_bundled(shipped):
    assert shipped.model_fingerprint == model_fingerprint("embedded")
    assert (shipped.seeds, shipped.dtype, shipped.determinism.floor) == (80, "bfloat16", 0.0)


def test_no_shipped_guard_is_below_what_clean_runs_reach(shipped):
    guards = default_tolerances().guards
    assert guards.l2_ratio > max(one.l2_ratio for one in shipped.envelope.by_variant.values())
    assert guards.linf_ratio > max(one.linf_ratio for one in shipped.envelope.by_variant.values())


def test_no_shipped_limit_was_loosened_to_what_was_measured(shipped):
    documented = {"5": 0.011, "50": 0.02, "1000": 0.03, "all": 0.05}
    assert {key: rtol for key, (_, rtol) in default_tolerances().top_k.items()} == documented
    assert shipped.tolerances.top_k["5"][1] > documented["5"]  # what docs/calibration.md says about it
