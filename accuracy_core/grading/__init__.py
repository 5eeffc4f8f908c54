"""Grading of decode-step implementations: correct, few launches, one dominant kernel; then tokens per second."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accuracy_core.grading.gates import grade as grade
    from accuracy_core.grading.order import GradeOrder as GradeOrder
    from accuracy_core.grading.result import Baselines as Baselines
    from accuracy_core.grading.result import Gate as Gate
    from accuracy_core.grading.result import GradeResult as GradeResult
    from accuracy_core.grading.shape import KvCache as KvCache
    from accuracy_core.grading.shape import StepConfig as StepConfig
    from accuracy_core.grading.task import TASKS as TASKS
    from accuracy_core.grading.task import GradeTask as GradeTask
    from accuracy_core.grading.task import grade_task as grade_task

#: public name -> module; loaded when used, for most of them need torch
_HOME = {
    "grade": "gates", "GradeOrder": "order", "Baselines": "result", "Gate": "result", "GradeResult": "result",
    "KvCache": "shape", "StepConfig": "shape", "TASKS": "task", "GradeTask": "task", "grade_task": "task",
}  # fmt: skip

__all__ = ["TASKS", "Baselines", "Gate", "GradeOrder", "GradeResult", "GradeTask", "KvCache", "StepConfig", "grade",
           "grade_task"]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
