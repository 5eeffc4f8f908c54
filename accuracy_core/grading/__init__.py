"""Grading of decode-step implementations: correct, few launches, one dominant kernel; then tokens per second."""

from accuracy_core.grading.grade import grade
from accuracy_core.grading.result import Baselines, Gate, GradeResult
from accuracy_core.grading.shape import KvCache, StepConfig
from accuracy_core.grading.task import TASKS, GradeTask, grade_task

__all__ = ["TASKS", "Baselines", "Gate", "GradeResult", "GradeTask", "KvCache", "StepConfig", "grade", "grade_task"]
