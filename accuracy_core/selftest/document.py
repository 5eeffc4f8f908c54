"""What a selftest found, as a document."""

from __future__ import annotations

from pydantic import Field

from accuracy_core.outcome import Verdict
from accuracy_core.schemas import Phase
from accuracy_core.schemas.base import Part, Schema

#: rates that a selftest must reach
MIN_DETECTED = 1.0
MIN_PLACED = 0.95


class CaseResult(Part):
    """One run. For a clean one only `detected` (a false alarm) counts; None in `*_right`: nothing to be right about."""

    architecture: str
    fault: str | None = None
    seed: int = 0
    layer: int | None = None
    strength: float | None = None
    level: str = ""
    detected: bool = Field(description="a verdict other than pass, or a configuration finding")
    by: list[str] = Field(default_factory=list, description="plugins and checks that found something")
    not_measured: dict[str, str] = Field(default_factory=dict, description="plugin -> why it has no verdict")
    verdict: Verdict | None = None
    phase: Phase = Phase.NONE
    expected_phase: Phase = Phase.NONE
    phase_right: bool | None = None
    module: str | None = None
    expected_modules: list[str] = Field(default_factory=list)
    module_right: bool | None = None
    confirmed: bool | None = None
    evidence: list[str] = Field(default_factory=list)
    error: str = Field("", description="the run could not be made")
    duration_s: float = 0.0

    @property
    def placed(self) -> bool | None:
        """Right phase and right first module; None for a clean run."""
        if self.fault is None:
            return None
        return self.detected and self.phase_right is not False and self.module_right is not False


class SelftestReport(Schema):
    """`selftest.json`."""

    engine: str
    quick: bool = False
    versions: dict[str, str] = Field(default_factory=dict)
    cases: list[CaseResult] = Field(default_factory=list)
    skipped: dict[str, dict[str, str]] = Field(
        default_factory=dict, description="fault -> architecture -> why it cannot have it"
    )
    duration_s: float = 0.0

    @property
    def faulty(self) -> list[CaseResult]:
        return [case for case in self.cases if case.fault is not None]

    @property
    def clean(self) -> list[CaseResult]:
        return [case for case in self.cases if case.fault is None]

    @property
    def detected(self) -> int:
        return sum(case.detected for case in self.faulty)

    @property
    def placed(self) -> int:
        return sum(bool(case.placed) for case in self.faulty)

    @property
    def false_alarms(self) -> int:
        return sum(case.detected for case in self.clean)

    @property
    def errors(self) -> int:
        return sum(bool(case.error) for case in self.cases)

    @property
    def passed(self) -> bool:
        """All faults detected, enough of them placed, no false alarm, every run made."""
        faulty = len(self.faulty)
        rates = not faulty or (self.detected >= MIN_DETECTED * faulty and self.placed >= MIN_PLACED * faulty)
        return rates and not self.false_alarms and not self.errors and bool(self.cases)

    def summary(self) -> str:
        """The figures in one sentence."""
        faults = {case.fault for case in self.faulty}
        names = {case.architecture for case in self.cases}
        runs = len(self.faulty)
        return (
            f"{len(faults)} faults on {len(names)} architectures, {runs} runs: "
            f"{_share(self.detected, runs)} detected, {_share(self.placed, runs)} with the right phase and first "
            f"module; {self.false_alarms} false alarms in {len(self.clean)} clean runs"
        )


def _share(part: int, whole: int) -> str:
    return f"{part}/{whole}" + (f" ({part / whole:.1%})" if whole else "")
