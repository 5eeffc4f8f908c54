"""`calibration.json`: what was measured, on what, and the tolerances that follow."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from pydantic import Field

from accuracy_core.calibration.determinism import DeterminismFloor
from accuracy_core.calibration.discrimination import Discrimination
from accuracy_core.calibration.dtype_noise import DtypeNoise
from accuracy_core.calibration.envelope import CleanEnvelope
from accuracy_core.calibration.metric_choice import MetricChoice
from accuracy_core.calibration.quantisation import QuantisationNoise
from accuracy_core.calibration.random_model import Soundness
from accuracy_core.calibration.seed_stability import SeedStability
from accuracy_core.calibration.span_audit import SpanAudit
from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas import Schema, Tolerances


class Calibration(Schema):
    """Figures that a second run on the same host reproduces, except `date`."""

    model_fingerprint: str
    model_name: str
    dtype: str
    device: str = Field(description="kind of device and its instruction set, e.g. cpu AVX512")
    versions: dict[str, str]
    date: datetime
    seeds: int
    tokens: int
    rows: int
    soundness: Soundness
    determinism: DeterminismFloor
    dtype_noise: list[DtypeNoise]
    metric: MetricChoice
    stability: SeedStability
    envelope: CleanEnvelope
    quantisation: QuantisationNoise | None = None
    spans: dict[str, SpanAudit] = Field(default_factory=dict, description="largest energy share first")
    relative_tolerance: float = Field(description="2 x the worst legitimate variant, over all logits")
    discrimination: Discrimination
    tolerances: Tolerances
    warnings: list[str] = Field(default_factory=list)


def load_calibration(
    path: Path, *, model_fingerprint: str, dtype: str, device: str, force: bool = False
) -> tuple[Tolerances, list[str]]:
    """Tolerances out of a calibration file, and what must be said about them in the report.

    Raises ConfigurationError when the file was made for another model, dtype or device; with `force` it is used all the
    same, and the list says so.
    """
    calibration = Calibration.from_json(_text(path), source=str(path))
    wanted = {"model": model_fingerprint, "dtype": dtype, "device": device}
    made = {"model": calibration.model_fingerprint, "dtype": calibration.dtype, "device": calibration.device}
    other = [
        f"{name} {_short(made[name])} instead of {_short(wanted[name])}"
        for name in wanted
        if made[name] != wanted[name]
    ]
    if other and not force:
        raise ConfigurationError(
            f"calibration {path} was made for another target: {', '.join(other)}",
            fix="calibrate this one with `assay calibrate`, or use the file all the same with --force-calibration",
        )
    notes = [f"calibration of another target was used on purpose: {', '.join(other)}"] if other else []
    return calibration.tolerances, [*notes, *calibration.warnings]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"calibration {path} cannot be read: {error}", fix="check the path") from error


def _short(text: str) -> str:
    return text if len(text) <= 24 else text[:12] + "…"
