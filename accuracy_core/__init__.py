"""Assay's core: is an inference engine numerically right, and if not, which module made it wrong?

The public names below load what they need when they are first used: `import accuracy_core` is fast.
"""

from __future__ import annotations

from accuracy_core.lazy import lazy_names

_HOME = {
    "DEFAULT_TOLERANCE_MAP": "accuracy_core.numerics",
    "MultiPromptValidationResult": "accuracy_core.logits",
    "logit_validation": "accuracy_core.logits",
    "multi_prompt_logit_validation": "accuracy_core.logits",
    "visualize_logit_results": "accuracy_core.logits.logit_visualization",
    "visualize_logits": "accuracy_core.logits.logit_visualization",
    "generate_three_way_reference_logits": "accuracy_core.goldens",
    "get_cached_reference_goldens": "accuracy_core.goldens",
    "get_or_compute_goldens": "accuracy_core.goldens",
    "LmEvalAnalyzer": "accuracy_core.evals.analyzer",
    "run_accuracy_gsm8k_cot": "accuracy_core.evals.presets",
    "run_lm_eval": "accuracy_core.evals.runner",
    "run_task_analysis": "accuracy_core.evals.analysis",
    "PLUGIN_REGISTRY": "accuracy_core.prompts",
    "KvCachePlugin": "accuracy_core.prompts",
    "LogitValPlugin": "accuracy_core.prompts",
    "reconstruct_contiguous_kv": "accuracy_core.capture.kv",
    "PromptPlugin": "accuracy_core.prompts",
    "run_prompt_analysis": "accuracy_core.prompts",
    "TensorCaptureModel": "accuracy_core.capture.model",
    "align_decode_captures": "accuracy_core.capture.compare",
    "compare_captures_three_way": "accuracy_core.capture.compare",
    "compare_captures_two_way": "accuracy_core.capture.compare",
    "compare_tensors": "accuracy_core.capture.compare",
    "compare_tensors_three_way": "accuracy_core.capture.compare",
    "TensorComparePlugin": "accuracy_core.prompts.plugins.tensor_compare",
    "generate_report": "accuracy_core.report",
    "EngineSpec": "accuracy_core.schemas",
    "open_engine": "accuracy_core.engines.registry",
}

__all__ = sorted(_HOME)

__getattr__, __dir__ = lazy_names(__name__, _HOME)
