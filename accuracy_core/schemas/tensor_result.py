"""Result of comparing module tensors of one prompt: a row per module and phase, and where it first goes wrong."""

from __future__ import annotations

from pydantic import Field

from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.schemas.base import Part, Schema
from accuracy_core.schemas.prompt_result import GuardHit, Phase


class ModuleMetrics(Part):
    """One canonical tap in one phase. NaN: not measured.

    Global errors compare with the references' own run, so they hold what earlier modules did. Local errors compare
    with what the reference's module makes of the target's own input, so they are this module's alone.
    """

    module: str = Field(description="canonical tap, see capture.taps")
    order: int = Field(description="place in the order of execution, from 0")
    layer: int | None = None
    phase: Phase = Field(description="prefill or decode")
    rows: int = Field(description="positions that were compared")
    l2: float = Field(float("nan"), description="relative L2 error of the target against FP32")
    base_l2: float = Field(float("nan"), description="the same of the reference in the target's dtype")
    l2_ratio: float = float("nan")
    linf_ratio: float = float("nan")
    bc: float = float("nan")
    local_l2: float = float("nan")
    local_base_l2: float = float("nan")
    local_ratio: float = float("nan")
    local_row_ratio: float = Field(float("nan"), description="largest local ratio of a single position")
    local_head_ratio: float = Field(float("nan"), description="largest local ratio of a single head")
    local_scale_ratio: float = Field(
        float("nan"), description="common factor of the positions' errors, as a multiple of the reference's"
    )
    worst_position: int | None = None
    worst_head: int | None = None
    nonfinite: int = Field(0, description="values that are NaN or infinite in the target and not in the reference")
    verdict: Verdict | None = None
    problem: str = Field("", description="why it was not measured, or what is wrong with its shape")


class DivergentModule(Part):
    """The first module in order of execution whose inputs are fine and whose output is not."""

    module: str
    layer: int | None = None
    head: int | None = None
    position: int | None = None
    phase: Phase
    ratio: float = Field(description="local ratio where it was measured, else the global one")
    local: bool = Field(description="found by the local comparison")
    evidence: str = ""


class DepthGrowth(Part):
    """Relative L2 error of the residual stream after each layer, and how it grows: `error ~ depth ** exponent`.

    Independent rounding in every layer adds up like the square root of the depth (exponent .5); a fault that pushes
    every layer the same way adds up linearly (exponent 1).
    """

    layers: list[int]
    error: list[float]
    base_error: list[float]
    exponent: float = float("nan")
    base_exponent: float = float("nan")


class TensorCompareResult(Schema):
    """`prompt_analysis/prompt_<i>/tensor_compare_result.json`."""

    index: int
    outcome: Outcome = Outcome.NUMERICS
    verdict: Verdict | None = None
    phase: Phase = Phase.NONE
    prompt_length: int = 0
    positions: int = 0
    modules: list[ModuleMetrics] = Field(default_factory=list)
    first_divergent: DivergentModule | None = None
    progression: dict[str, list[float]] = Field(
        default_factory=dict, description="layer output tap -> relative L2 error per position"
    )
    depth: DepthGrowth | None = None
    guards: list[GuardHit] = Field(default_factory=list)
    missing: dict[str, str] = Field(default_factory=dict, description="tap -> why it is not there")
    notes: list[str] = Field(default_factory=list, description="what is worth knowing and judges nothing")
    error: str | None = None


class ComparisonSummary(Schema):
    """`tensor_compare/comparison_summary.json`: all prompts together."""

    verdict: Verdict | None = None
    max_l2_ratio: float
    target: str = Field(description="name of the target's capture folder: neuron, cuda, cpu")
    modules: list[ModuleMetrics] = Field(
        default_factory=list, description="worst over the prompts, per module and phase"
    )
    first_divergent: DivergentModule | None = None
    confirmed: bool | None = Field(None, description="replacing the module's tensor made the error vanish")
    prompts: dict[str, Verdict | None] = Field(default_factory=dict)
