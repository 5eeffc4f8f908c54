"""Defaults of the embedded model: what its scores must reach. Numbers and their provenance are in `embedded.toml`."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

from accuracy_core.schemas.run_parameters import EvalParameters, ThresholdSpec

EMBEDDED = "embedded"


def default_thresholds(evaluation: EvalParameters) -> dict[str, ThresholdSpec]:
    """Thresholds of the embedded model for those of the bundled tasks that are run.

    `std` is binomial, sqrt(mean * (1 - mean) / n), for the n documents that `evaluation.limit` leaves.
    """
    data: dict[str, Any] = tomllib.loads((Path(__file__).parent / "embedded.toml").read_text(encoding="utf-8"))
    found: dict[str, ThresholdSpec] = {}
    for row in data["threshold"]:
        if set(row["run_by"]) & set(evaluation.tasks):
            mean, documents = float(row["mean"]), min(row["documents"], evaluation.limit or row["documents"])
            std = math.sqrt(mean * (1 - mean) / documents)
            found[row["key"]] = {"mean": mean, "std": std, "n_sigma": float(row["n_sigma"])}
    return found
