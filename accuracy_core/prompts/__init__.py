"""Prompt analysis: prepare prompts, run plugins on one engine, triage, conclude."""

from accuracy_core.prompts.conclusion import Conclusion, conclude, conclude_error
from accuracy_core.prompts.context import PluginContext
from accuracy_core.prompts.curated import curated_prompts
from accuracy_core.prompts.goldens import compute_goldens
from accuracy_core.prompts.orchestrator import claim_directory, run_plugins, run_prompt_analysis
from accuracy_core.prompts.plugin import PromptPlugin
from accuracy_core.prompts.plugins.kv_cache import KvCachePlugin
from accuracy_core.prompts.plugins.logit_val import LogitValPlugin
from accuracy_core.prompts.prepare import prepare_prompts
from accuracy_core.prompts.prepared import PreparedPrompt, PreparedPrompts
from accuracy_core.prompts.registry import PLUGIN_REGISTRY, make_plugins, register
from accuracy_core.prompts.result import PromptAnalysisResult
from accuracy_core.prompts.triage import Triage, phase_text, triage

__all__ = [
    "Conclusion", "KvCachePlugin", "LogitValPlugin", "PLUGIN_REGISTRY", "PluginContext", "PreparedPrompt",
    "PreparedPrompts", "PromptAnalysisResult", "PromptPlugin", "Triage", "claim_directory", "compute_goldens",
    "conclude",
    "conclude_error", "curated_prompts", "make_plugins", "phase_text", "prepare_prompts", "register", "run_plugins",
    "run_prompt_analysis", "triage",
]  # fmt: skip
