"""What a grading says."""

from __future__ import annotations

import math

from pydantic import Field

from accuracy_core.outcome import Outcome, Verdict, banner, exit_code
from accuracy_core.prompts.conclusion import Conclusion
from accuracy_core.schemas import Part, RunDir, Schema

FILE = "grade.json"


class Gate(Part):
    """`passed` None: not measured, because an earlier step failed. `detail`: what was worst, or why it failed."""

    name: str
    passed: bool | None = None
    value: float = float("nan")
    limit: float = float("nan")
    detail: str = ""


class Baselines(Part):
    """Seconds per step of the unfused reference, same machine, one thread. NaN: not measured, `notes` says why.

    `eager`: wall time, taken as a submission's. `eager_busy`: sum of the operators' own time. `compiled`: compiled by
    torch on a CPU, replayed from a captured graph on CUDA. `floor`: bytes that a step must read over the bandwidth
    measured on this machine.
    """

    eager: float = float("nan")
    eager_busy: float = float("nan")
    compiled: float = float("nan")
    floor: float = float("nan")
    bandwidth_bytes_per_s: float = float("nan")
    bytes_per_step: int = 0
    notes: dict[str, str] = Field(default_factory=dict)


class GradeResult(Schema):
    """`grade.json`. `score`: tokens per second when every gate passes, else 0."""

    submission: str = ""
    task: str
    scale: str = "small"
    device: str
    machine: str = ""
    score: float = 0.0
    gates: list[Gate] = Field(default_factory=list)
    seconds_per_step: float = float("nan")
    baselines: Baselines = Field(default_factory=Baselines)
    provenance: str = Field("", description="where the tolerance of the first gate comes from")
    from_unfused: float = Field(
        float("nan"), description="largest relative error against the unfused reference in the task's own dtype"
    )
    seed: int = Field(0, description="all sequences are drawn from it; giving it again repeats them")
    refused: bool = Field(False, description="the submission cannot be used at all: nothing of it was judged")
    error: str = Field("", description="why the submission could not be graded to the end")

    @property
    def passed(self) -> bool:
        return bool(self.gates) and all(gate.passed for gate in self.gates) and not self.error

    @property
    def failed(self) -> list[Gate]:
        return [gate for gate in self.gates if gate.passed is False]

    def conclusion(self) -> Conclusion:
        """Passed 0, a gate failed 2, a submission that cannot be used 3."""
        notes = [f"{gate.name} is {gate.value:.4g}, limit {gate.limit:.4g} ({gate.detail})" for gate in self.failed]
        if self.refused:
            return Conclusion(
                outcome=Outcome.CONFIGURATION,
                banner=banner(Outcome.CONFIGURATION, None),
                headline=f"wrong set-up: the submission cannot be used: {self.error}",
                fix="a submission defines build(config, weights) -> step(token_ids, cache) -> logits",
                state="ConfigurationFailed",
                exit_code=exit_code(Outcome.CONFIGURATION, None),
            )
        verdict = Verdict.PASS if self.passed else Verdict.FAIL
        return Conclusion(
            outcome=Outcome.NUMERICS,
            verdict=verdict,
            banner=banner(Outcome.NUMERICS, verdict),
            headline=self._headline(),
            notes=notes,
            state="Completed" if self.passed else "AccuracyFailed",
            exit_code=exit_code(Outcome.NUMERICS, verdict),
        )

    def _headline(self) -> str:
        if self.passed:
            return f"{self.task}: {self.score:.1f} tokens per second, all gates pass"
        if self.error:
            return f"{self.task}: score 0: {self.error}"
        return f"{self.task}: score 0, failed: {', '.join(gate.name for gate in self.failed)}"

    def over_floor(self) -> float:
        """How many times the bandwidth floor a step takes; NaN when either was not measured."""
        floor = self.baselines.floor
        return self.seconds_per_step / floor if floor and math.isfinite(floor) else float("nan")


def write_result(run_dir: RunDir, result: GradeResult) -> None:
    """`grade.json` of a run directory."""
    run_dir.write(run_dir.root / FILE, result)
