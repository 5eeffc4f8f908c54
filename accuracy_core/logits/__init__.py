"""Logit validation: compare, teacher-force, save, draw."""

from accuracy_core.logits.compare import compare_prompts
from accuracy_core.logits.logit_validation import logit_validation, multi_prompt_logit_validation
from accuracy_core.logits.result import MultiPromptValidationResult, PromptVerdict, Worst
from accuracy_core.logits.teacher_forcing import force
from accuracy_core.numerics.defaults import DEFAULT_TOLERANCE_MAP

__all__ = [
    "DEFAULT_TOLERANCE_MAP", "MultiPromptValidationResult", "PromptVerdict", "Worst", "compare_prompts", "force",
    "logit_validation", "multi_prompt_logit_validation",
]  # fmt: skip
