"""`calibration.json`: what was measured, on what, and the tolerances that follow."""

from __future__ import annotations

import json
from datetime import datetime

from pydantic import Field

from accuracy_core.calibration.determinism import DeterminismFloor
from accuracy_core.calibration.discrimination import Discrimination
from accuracy_core.calibration.dtype_noise import DtypeNoise
from accuracy_core.calibration.envelope import CleanEnvelope
from accuracy_core.calibration.metric_choice import MetricChoice
from accuracy_core.calibration.output_floor import OutputFloor
from accuracy_core.calibration.quantisation import QuantisationNoise
from accuracy_core.calibration.random_model import Soundness
from accuracy_core.calibration.seed_stability import SeedStability
from accuracy_core.calibration.span_audit import SpanAudit
from accuracy_core.schemas import Schema, Tolerances, fingerprint


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
    output_floor: list[OutputFloor] = Field(default_factory=list, description="of bfloat16 outputs, for any model")
    relative_tolerance: float = Field(description="2 x the worst legitimate variant, over all logits")
    discrimination: Discrimination
    tolerances: Tolerances
    warnings: list[str] = Field(default_factory=list)

    @property
    def id(self) -> str:
        """sha256 over all figures, without the date: two runs that measured the same have the same."""
        return fingerprint(json.loads(self.model_dump_json(exclude={"date"})))
