"""What a grading says."""

from __future__ import annotations

from pydantic import Field

from accuracy_core.schemas import Part, Schema


class Gate(Part):
    """`passed` None: not measured, because an earlier step failed."""

    name: str
    passed: bool | None = None
    value: float = float("nan")
    limit: float = float("nan")
    detail: str = ""


class Baselines(Part):
    """Seconds per step. `floor`: bytes that a step must read over the bandwidth measured on this machine."""

    eager: float = float("nan")
    compiled: float = float("nan")
    floor: float = float("nan")
    bandwidth_bytes_per_s: float = float("nan")
    bytes_per_step: int = 0


class GradeResult(Schema):
    """`grade.json`. `score`: tokens per second when every gate passes, else 0."""

    task: str
    device: str
    score: float = 0.0
    gates: list[Gate] = Field(default_factory=list)
    seconds_per_step: float = float("nan")
    baselines: Baselines = Field(default_factory=Baselines)
    error: str = Field("", description="why the submission could not be graded to the end")

    @property
    def passed(self) -> bool:
        return bool(self.gates) and all(gate.passed for gate in self.gates) and not self.error
