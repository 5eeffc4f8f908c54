"""Level 3: single modules of a target against Hugging Face's, on seeded inputs."""

from accuracy_core.modules.closeness import (
    Closeness,
    ThreeWayCloseness,
    assert_close,
    assert_close_three_way,
    closeness,
    closeness_three_way,
)
from accuracy_core.modules.executor import ModuleExecutor, ModuleInput
from accuracy_core.modules.hf_executor import HfModuleExecutor
from accuracy_core.modules.kinds import KINDS, ModuleKind
from accuracy_core.modules.validate import Plan, validate_modules
from accuracy_core.schemas import ModuleCheck, ModuleValidationResult

__all__ = [
    "KINDS", "Closeness", "HfModuleExecutor", "ModuleCheck", "ModuleExecutor", "ModuleInput", "ModuleKind",
    "ModuleValidationResult", "Plan", "ThreeWayCloseness", "assert_close", "assert_close_three_way", "closeness",
    "closeness_three_way", "validate_modules",
]  # fmt: skip
