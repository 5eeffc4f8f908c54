"""Summary of prompt analysis over all prompts and plugins."""

from __future__ import annotations

from pydantic import Field

from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.schemas.base import Part, Schema
from accuracy_core.schemas.culprit import Culprit
from accuracy_core.schemas.finding import Finding
from accuracy_core.schemas.prompt_result import GuardHit, Phase, RouteResult


class PluginStatus(Part):
    """One plugin over all prompts."""

    plugin: str
    outcome: Outcome = Outcome.NUMERICS
    verdict: Verdict | None = None
    routes: list[RouteResult] = Field(default_factory=list)
    worst: GuardHit | None = Field(None, description="worst guard hit: prompt and token")
    aggregates: dict[str, float] = Field(default_factory=dict)
    per_prompt: dict[str, Verdict | None] = Field(default_factory=dict, description="prompt index -> verdict")
    errors: dict[str, str] = Field(default_factory=dict, description="prompt index, or `plugin`, -> error")
    not_measured: dict[str, str] = Field(
        default_factory=dict, description="part of the analysis that was asked for and has no result -> why"
    )


class Escalation(Part):
    """What triage did by itself once the logits had failed."""

    prompts: list[int] = Field(default_factory=list, description="failing prompts that were looked at, worst first")
    failing: int = Field(0, description="prompts that failed")
    plugins: list[str] = Field(default_factory=list, description="plugins that it ran")
    not_measured: dict[str, str] = Field(default_factory=dict, description="plugin -> why it has no result")
    duration_s: float = Field(0.0, description="seconds that the device was held for it")


class PromptAnalysisStatus(Schema):
    """`prompt_analysis/analysis.json`. Two calls into one directory merge their `plugins`."""

    outcome: Outcome = Outcome.NUMERICS
    verdict: Verdict | None = None
    phase: Phase = Phase.NONE
    n_prompts: int = 0
    curated: bool = False
    plugins: dict[str, PluginStatus] = Field(default_factory=dict)
    culprit: Culprit | None = None
    findings: list[Finding] = Field(default_factory=list)
    engine: dict[str, str] = Field(default_factory=dict, description="what the target reported about itself")
    log_tail: str = Field("", description="end of the engine's log when it died")
    escalation: Escalation | None = Field(None, description="None: the logits passed, or triage was switched off")
