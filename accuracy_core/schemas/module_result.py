"""Result of validating modules, as a document."""

from __future__ import annotations

from pydantic import Field

from accuracy_core.outcome import Outcome, Verdict, worst
from accuracy_core.schemas.base import Part, Schema


class ModuleCheck(Part):
    """One kind of module in one layer, over all seeded inputs. NaN: not measured."""

    kind: str
    layer: int
    phase: str = Field(description="prefill or decode; empty when nothing was run")
    taps: list[str] = Field(default_factory=list, description="what was read")
    inputs: int = 0
    outcome: Outcome = Outcome.NUMERICS
    verdict: Verdict | None = None
    rule: bool | None = Field(None, description="the documented rule alone; None: not measured")
    sigma_ratio: float = float("nan")
    bc: float = float("nan")
    worst_linf_ratio: float = float("nan")
    worst_l2_ratio: float = float("nan")
    lean: float = Field(float("nan"), description="mean error towards (-) or away from zero, in RMS of the dtype noise")
    relative_error: float = Field(float("nan"), description="largest |target - fp32| / max |fp32|")
    reason: str = ""
    finding: str = Field("", description="what a miss of the documented rule was proven to be, where that is no fault")
    figure: str | None = Field(None, description="page with scatter, histogram and QQ plot, for a failure")

    @property
    def name(self) -> str:
        """`mlp, layer 3, decode`."""
        return ", ".join(filter(None, (self.kind, f"layer {self.layer}", self.phase)))


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
    def unmeasured(self) -> list[ModuleCheck]:
        return [check for check in self.checks if check.verdict is None]

    @property
    def found(self) -> list[ModuleCheck]:
        """Checks that pass with a named finding."""
        return [check for check in self.checks if check.finding]

    @property
    def outcome(self) -> Outcome:
        """Numerics as soon as anything was judged."""
        return Outcome.NUMERICS if any(check.verdict for check in self.checks) else Outcome.NOT_MEASURED

    @property
    def verdict(self) -> Verdict | None:
        """The worst check's; None when nothing was measured."""
        measured = [check.verdict for check in self.checks if check.verdict is not None]
        return worst(measured) if measured else None
