"""Defaults of the embedded model: what its scores must reach. Numbers and their provenance are in `embedded.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from accuracy_core.schemas.run_parameters import ThresholdSpec

EMBEDDED = "embedded"


def default_thresholds(tasks: list[str]) -> dict[str, ThresholdSpec]:
    """Thresholds of the embedded model for those of the bundled tasks that are run."""
    data: dict[str, Any] = tomllib.loads((Path(__file__).parent / "embedded.toml").read_text(encoding="utf-8"))
    return {
        row["key"]: {name: float(row[name]) for name in ("mean", "std", "n_sigma")}
        for row in data["threshold"]
        if set(row["run_by"]) & set(tasks)
    }
