"""`report.json`: what the page says, for machines."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field, JsonValue

from accuracy_core.outcome import Banner, Outcome, Verdict, worst
from accuracy_core.prompts.conclusion import Conclusion
from accuracy_core.prompts.preflight.report import PreflightReport
from accuracy_core.report.evidence import LOGITS, RunEvidence
from accuracy_core.schemas import (
    Culprit,
    DivergentModule,
    Escalation,
    FaultSpec,
    KvPattern,
    KvPlace,
    ModuleCheck,
    ModuleMetrics,
    PairedTest,
    Part,
    Phase,
    PluginStatus,
    Schema,
    ScoreRow,
    ThresholdResult,
)


class PromptSummary(Part):
    """One prompt over all plugins."""

    index: int
    label: str = ""
    source: str = ""
    purpose: str = ""
    verdicts: dict[str, Verdict | None] = Field(
        default_factory=dict, description="plugin -> verdict; None: not measured"
    )
    phase: Phase = Phase.NONE
    first_bad_token: int | None = None
    guards: list[str] = Field(default_factory=list, description="names of the guards that fired")
    worst_l2_ratio: float = float("nan")
    worst_linf_ratio: float = float("nan")
    golden_key: str | None = None
    first_divergent: DivergentModule | None = Field(None, description="where tensor compare first found a difference")
    wrong_modules: list[str] = Field(default_factory=list, description="modules that are wrong by themselves, in order")
    kv_pattern: KvPattern | None = Field(None, description="None: the KV cache was not compared")
    kv_first_bad: KvPlace | None = None
    errors: dict[str, str] = Field(default_factory=dict)

    @property
    def verdict(self) -> Verdict | None:
        """The worst of all plugins; None when none judged this prompt."""
        measured = [verdict for verdict in self.verdicts.values() if verdict is not None]
        return worst(measured) if measured else None


class StageSummary(Part):
    stage: str
    status: str
    duration_s: float
    message: str = ""


class ReportDocument(Schema):
    """`report.json`. `conclusion` repeats the decision in full; the fields above it are what most readers want."""

    generated: datetime
    model: str = ""
    model_fingerprint: str = ""
    outcome: Outcome
    verdict: Verdict | None
    banner: Banner
    headline: str
    exit_code: int
    fault: FaultSpec | None = None
    culprit: Culprit | None = None
    preflight: PreflightReport | None = Field(None, description="None: there was no preflight")
    scores: list[ScoreRow] = Field(default_factory=list)
    thresholds: list[ThresholdResult] = Field(default_factory=list)
    paired: list[PairedTest] = Field(default_factory=list)
    plugins: dict[str, PluginStatus] = Field(default_factory=dict)
    prompts: list[PromptSummary] = Field(default_factory=list)
    modules: list[ModuleCheck] = Field(default_factory=list, description="checks of single modules")
    triage: list[str] = Field(default_factory=list, description="lit branches of the triage tree, parents first")
    escalation: Escalation | None = Field(None, description="what triage did by itself")
    stages: list[StageSummary] = Field(default_factory=list)
    versions: dict[str, str] = Field(default_factory=dict)
    engine: dict[str, str] = Field(default_factory=dict, description="what the target reported about itself")
    parameters: dict[str, JsonValue] = Field(default_factory=dict)
    section_errors: dict[str, str] = Field(default_factory=dict, description="sections that failed to render")
    conclusion: Conclusion


def prompt_summaries(found: RunEvidence) -> list[PromptSummary]:
    """All prompts of the run directory, in numeric order."""
    plugins = found.analysis.plugins if found.analysis is not None else {}
    return [_summary(found, prompt.index, plugins) for prompt in found.prompts.prompts]


def _summary(found: RunEvidence, index: int, plugins: dict[str, PluginStatus]) -> PromptSummary:
    prompt = next(prompt for prompt in found.prompts.prompts if prompt.index == index)
    result = found.logits.get(index)
    key = str(index)
    rows = result.rows if result is not None else []
    guards = [hit.guard for hit in result.guards] if result is not None else []
    guards += [hit.guard for row in rows for hit in row.guards]
    verdicts = {
        name: status.per_prompt.get(key)
        for name, status in plugins.items()
        if key in status.per_prompt or key in status.errors or "plugin" in status.errors
    }
    if result is not None:
        verdicts[LOGITS] = result.verdict
    tensors, kv = found.tensors.get(index), found.witnesses.kv.get(index)
    wrong = [] if tensors is None else sorted((row.order, row.module) for row in tensors.modules if _wrong(row))
    return PromptSummary(
        index=index,
        label=prompt.label,
        source=prompt.source,
        purpose=prompt.purpose,
        verdicts=verdicts,
        phase=result.phase if result is not None else Phase.NONE,
        first_bad_token=result.first_bad_token if result is not None else None,
        guards=list(dict.fromkeys(guards)),
        worst_l2_ratio=_worst([row.l2_ratio for row in rows]),
        worst_linf_ratio=_worst([row.linf_ratio for row in rows]),
        golden_key=result.golden_key if result is not None else None,
        first_divergent=tensors.first_divergent if tensors is not None else None,
        wrong_modules=list(dict.fromkeys(module for _, module in wrong)),
        kv_pattern=kv.pattern if kv is not None else None,
        kv_first_bad=kv.first_bad if kv is not None else None,
        errors={
            name: status.errors.get(key) or status.errors["plugin"]
            for name, status in plugins.items()
            if key in status.errors or "plugin" in status.errors
        },
    )


def _wrong(row: ModuleMetrics) -> bool:
    return row.verdict is Verdict.FAIL


def _worst(values: list[float]) -> float:
    """Largest measured value; NaN when none was measured."""
    return max((value for value in values if value == value), default=float("nan"))
