"""Schemas that the parts share: versioned pydantic models, JSON on disk."""

from accuracy_core.schemas.base import Part, Schema, canonical_json, fingerprint
from accuracy_core.schemas.call_snapshot import CallSnapshot
from accuracy_core.schemas.consistency_result import (
    ConsistencyCheck,
    ConsistencyKind,
    ConsistencyResult,
    ConsistencyRows,
)
from accuracy_core.schemas.culprit import Culprit, ReplacementTrial
from accuracy_core.schemas.deviated_prompt import DeviatedPrompt, DeviatedPrompts
from accuracy_core.schemas.engine_spec import EngineSpec, Platform
from accuracy_core.schemas.fault_spec import FaultSpec
from accuracy_core.schemas.finding import Finding, Severity
from accuracy_core.schemas.kv_result import KvHeadMetrics, KvPattern, KvPlace, KvResult
from accuracy_core.schemas.module_parameters import ModuleParameters
from accuracy_core.schemas.module_result import ModuleCheck, ModuleValidationResult
from accuracy_core.schemas.prompt_analysis_status import Escalation, PluginStatus, PromptAnalysisStatus
from accuracy_core.schemas.prompt_result import GuardHit, Phase, PromptResult, RouteResult, RowMetrics
from accuracy_core.schemas.replay import (
    CaptureSpec,
    Replacement,
    ReplayConditions,
    ReplayConduct,
    ReplayRequest,
    ReplayResult,
    SnapshotSpec,
)
from accuracy_core.schemas.report_section import ReportSection, Tab
from accuracy_core.schemas.run_dir import RunDir, write_text
from accuracy_core.schemas.run_parameters import EvalParameters, PreflightParameters, PromptParameters, RunParameters
from accuracy_core.schemas.stage_record import StageRecord
from accuracy_core.schemas.task_status import (
    PairedTest,
    ResultsSummary,
    SampleRecord,
    ScoreRow,
    TaskStatus,
    ThresholdResult,
)
from accuracy_core.schemas.tensor_result import (
    ComparisonSummary,
    DivergentModule,
    ModuleMetrics,
    TensorCompareResult,
)
from accuracy_core.schemas.tolerances import Aggregate, Guards, Tolerances

__all__ = [
    "Aggregate", "CallSnapshot", "CaptureSpec", "ComparisonSummary", "ConsistencyCheck",
    "ConsistencyKind", "ConsistencyResult", "ConsistencyRows", "Culprit", "DeviatedPrompt", "DeviatedPrompts",
    "DivergentModule", "EngineSpec", "Escalation", "EvalParameters", "FaultSpec", "Finding", "GuardHit", "Guards",
    "KvHeadMetrics", "KvPattern", "KvPlace", "KvResult", "ModuleCheck", "ModuleMetrics", "ModuleParameters",
    "ModuleValidationResult", "PairedTest", "Part", "Phase", "Platform",
    "PluginStatus", "PreflightParameters", "PromptAnalysisStatus", "PromptParameters", "PromptResult", "Replacement",
    "ReplacementTrial", "ReplayConditions", "ReplayConduct", "ReplayRequest", "ReplayResult", "ReportSection",
    "ResultsSummary", "RouteResult", "RowMetrics", "RunDir", "RunParameters", "SampleRecord", "Schema",
    "ScoreRow", "Severity", "SnapshotSpec", "StageRecord", "Tab",
    "TaskStatus", "TensorCompareResult", "ThresholdResult", "Tolerances", "canonical_json", "fingerprint", "write_text",
]  # fmt: skip
