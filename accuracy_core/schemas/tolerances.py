"""Thresholds as data with provenance."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Self

from pydantic import Field, JsonValue, ValidationError

from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas.base import Part, Schema


class Guards(Part):
    """Limits that no rescue route can outvote."""

    l2_ratio: float = Field(gt=0)
    linf_ratio: float = Field(gt=0)
    flip_noise_multiple: float = Field(gt=0, description="k: an argmax flip is excused up to ULP bound + k * noise")
    flip_noise_quantile: float = Field(gt=0, le=1, description="clean quantile that stands for the noise")
    winner_noise_multiple: float | None = Field(
        None, gt=0, description="error at the reference's argmax, in clean quantiles of errors at likely tokens"
    )
    l2_run_envelope: float = Field(
        0.0, ge=0, description="an L2 hit must also exceed this times the run's largest relative base error"
    )
    linf_run_envelope: float = Field(0.0, ge=0, description="the same for L-inf hits")
    pooled_l2_ratio: float | None = Field(
        None, gt=0, description="typical (geometric mean) L2 ratio of many rows that no clean target reaches"
    )
    row_log_spread: float = Field(0.0, ge=0, description="clean standard deviation of log L2 ratio between rows")
    pooled_min_rows: int = Field(8, ge=1, description="fewer rows are not judged as a group")
    pooled_z: float = Field(0.0, ge=0, description="standard errors that a pooled ratio is allowed on top")
    bias_p: float | None = Field(None, gt=0, lt=1, description="p-value below which a signed bias is no accident")
    bias_noise_share: float = Field(
        0.0, ge=0, description="bias, in RMS of the base noise, that is too small to matter"
    )


class Aggregate(Part):
    """Bounds of the documented routes and the diagnostic multipliers."""

    sigma_ratio: float = Field(gt=0)
    bc: float = Field(gt=0, le=1)
    linf_ratio: float = Field(gt=0)
    l2_ratio: float = Field(gt=0)
    bc_min_samples: int = Field(ge=1, description="below this many errors per side BC is not measured")


class Tolerances(Schema):
    """Static map, divergence bound, aggregate bounds and guards; from `tolerances.toml` or a `calibration.json`.

    `top_k` maps the documented keys ("5", …, "all") to (atol, rtol).
    """

    top_k: dict[str, tuple[float, float]]
    n_ulps: float = Field(gt=0)
    aggregate: Aggregate
    guards: Guards
    extra: dict[str, JsonValue] = Field(default_factory=dict, description="limits of single checks, by name")
    provenance: dict[str, JsonValue] = Field(default_factory=dict, description="where the numbers come from")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a `.toml` or `.json` file. Raises ConfigurationError naming the file and the wrong key."""
        try:
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".json":
                return cls.from_json(text, source=str(path))
            data: dict[str, Any] = tomllib.loads(text)
            return cls.model_validate(data)
        except (OSError, tomllib.TOMLDecodeError, ValidationError) as error:
            raise ConfigurationError(f"tolerances file {path} is not usable: {error}") from error
