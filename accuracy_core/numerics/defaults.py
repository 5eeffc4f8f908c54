"""The tolerances that apply when no calibration is given."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from accuracy_core.schemas import Tolerances


@lru_cache(maxsize=1)
def default_tolerances() -> Tolerances:
    """`tolerances.toml` of this package; the model is frozen, use `model_copy(update=…)` to change a limit."""
    return Tolerances.load(Path(__file__).with_name("tolerances.toml"))


#: documented default map: top-k slice -> (atol, rtol)
DEFAULT_TOLERANCE_MAP: dict[str, tuple[float, float]] = dict(default_tolerances().top_k)
