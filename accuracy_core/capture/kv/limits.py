"""Limits of the KV comparison: data, from the tolerances."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field, ValidationError

from accuracy_core.errors import ConfigurationError
from accuracy_core.numerics import default_tolerances
from accuracy_core.schemas import Part, Tolerances

#: formats that only caches have -> explicitly stored mantissa bits
CACHE_DTYPES = {"float8_e4m3fn": 3, "float8_e5m2": 2, "fp8": 3, "fp8_e4m3": 3, "fp8_e5m2": 2}


class KvLimits(Part):
    """`extra.kv` of the tolerances; where each number comes from is said there. Ratios are in units of dtype noise."""

    l2_ratio: float = Field(gt=0, description="L2 error of a row (one head, one position) over the reference's")
    linf_ratio: float = Field(gt=0, description="the same for the largest error of a row")
    run_envelope: float = Field(
        ge=1, description="a row's relative error must also exceed this times the reference's largest in the run"
    )
    given_envelope: float = Field(
        ge=1, description="the same where the cache is known to hold what attention was given"
    )
    routed_relative: float = Field(
        gt=0, description="relative error that no other choice of experts explains, behind a router"
    )
    routed_head_ratio: float = Field(gt=1, description="typical L2 ratio of a head behind a router")
    routed_head_ceiling: float = Field(gt=1, description="rows count as no more than this in it")
    head_ratio: float = Field(gt=1, description="typical (geometric mean) L2 ratio of one head over all positions")
    head_log_spread: float = Field(gt=0, description="clean standard deviation of log L2 ratio between positions")
    head_z: float = Field(ge=0, description="standard errors that a typical ratio is allowed on top")
    head_min_rows: int = Field(ge=1, description="fewer positions are not judged as a group")
    float32_noise: float = Field(gt=0, description="relative error of an equally right float32 computation")
    bc_min_samples: int = Field(ge=1, description="below this many errors per side BC is not measured")
    match_share: float = Field(gt=0, le=1, description="share of an error that an explanation must remove, squared")
    pattern_share: float = Field(gt=0, le=1, description="share of the rows that must follow a pattern")

    @classmethod
    def of(cls, tolerances: Tolerances | None = None) -> KvLimits:
        """From `tolerances`; a calibration without KV limits leaves the defaults. Raises ConfigurationError."""
        default = default_tolerances().extra.get("kv")
        own = tolerances.extra.get("kv") if tolerances is not None else None
        values = {**(default if isinstance(default, Mapping) else {}), **(own if isinstance(own, Mapping) else {})}
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigurationError(f"limits of the KV comparison (extra.kv) are not usable: {error}") from error


def noise_bits(dtype: str, cache_dtype: str = "auto") -> int:
    """Stored mantissa bits of what is in the cache: of `cache_dtype`, else of the target's `dtype`."""
    from accuracy_core.numerics.precision import mantissa_bits

    name = cache_dtype.removeprefix("torch.")
    return CACHE_DTYPES[name] if name in CACHE_DTYPES else mantissa_bits(dtype)
