"""Preflight: is the set-up right? Cheap checks of configuration, tokens and loading, made before any numerics."""

from accuracy_core.prompts.preflight import checks  # noqa: F401 - registers the built-in ones
from accuracy_core.prompts.preflight.facts import (
    FilterFacts,
    LoadReport,
    PreflightFacts,
    SeenRequest,
    ServerFacts,
    TensorInfo,
)
from accuracy_core.prompts.preflight.gather import checkpoint_facts
from accuracy_core.prompts.preflight.registry import PREFLIGHT_CHECKS, PreflightCheck, require_known, run_preflight
from accuracy_core.prompts.preflight.report import CheckResult, PreflightReport

__all__ = [
    "PREFLIGHT_CHECKS", "CheckResult", "FilterFacts", "LoadReport", "PreflightCheck", "PreflightFacts",
    "PreflightReport", "SeenRequest", "ServerFacts", "TensorInfo", "checkpoint_facts", "require_known", "run_preflight",
]  # fmt: skip
