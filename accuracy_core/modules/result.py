"""Result of validating modules, as a document."""

from __future__ import annotations

from pydantic import Field

from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.schemas import Part, Schema


class ModuleCheck(Part):
    """One kind of module in one layer, over all seeded inputs. NaN: not measured."""

    kind: str
    layer: int
    phase: str = Field(description="prefill or decode")
    taps: list[str] = Field(default_factory=list, description="what was read")
    inputs: int = 0
    outcome: Outcome = Outcome.NUMERICS
    verdict: Verdict | None = None
    sigma_ratio: float = float("nan")
    bc: float = float("nan")
    worst_linf_ratio: float = float("nan")
    worst_l2_ratio: float = float("nan")
    lean: float = Field(float("nan"), description="mean error towards (-) or away from zero, in RMS of the dtype noise")
    relative_error: float = Field(float("nan"), description="largest |target - fp32| / max |fp32|")
    reason: str = ""
    figure: str | None = Field(None, description="page with scatter, histogram and QQ plot, for a failure")


class ModuleValidationResult(Schema):
    """`modules/module_validation.json`."""

    target: str
    dtype: str
    seeds: int
    prefill: int
    decode: int
    checks: list[ModuleCheck] = Field(default_factory=list)

    @property
    def failed(self) -> list[ModuleCheck]:
        return [check for check in self.checks if check.verdict is Verdict.FAIL]

    @property
    def outcome(self) -> Outcome:
        """Numerics as soon as anything was judged."""
        return Outcome.NUMERICS if any(check.verdict for check in self.checks) else Outcome.NOT_MEASURED

    @property
    def verdict(self) -> Verdict | None:
        """The worst check's; None when nothing was measured."""
        if self.outcome is not Outcome.NUMERICS:
            return None
        return Verdict.FAIL if self.failed else Verdict.PASS
