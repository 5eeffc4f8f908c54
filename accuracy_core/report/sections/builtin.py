"""Registers the built-in sections, in the order in which they appear."""

from accuracy_core.report.registry import register_section
from accuracy_core.report.sections.engine_consistency import EngineConsistencySection
from accuracy_core.report.sections.grading import GradingSection
from accuracy_core.report.sections.history import HistorySection
from accuracy_core.report.sections.kv_analysis import KVAnalysisPlugin
from accuracy_core.report.sections.logit_validation import LogitValidationPlugin
from accuracy_core.report.sections.module_validation import ModuleValidationSection
from accuracy_core.report.sections.overview import (
    CulpritSection,
    LegendSection,
    PromptCardsSection,
    ProvenanceSection,
    TriageSection,
)
from accuracy_core.report.sections.preflight import PreflightSection
from accuracy_core.report.sections.task_analysis import TaskAnalysisPlugin
from accuracy_core.report.sections.tensor_compare import TensorCompareSection

for _section in (
    CulpritSection(),
    GradingSection(),
    PromptCardsSection(),
    PreflightSection(),
    ModuleValidationSection(),
    TriageSection(),
    LegendSection(),
    ProvenanceSection(),
    TaskAnalysisPlugin(),
    LogitValidationPlugin(),
    EngineConsistencySection(),
    KVAnalysisPlugin(),
    TensorCompareSection(),
    HistorySection(),
):
    register_section(_section)
