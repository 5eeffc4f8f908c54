"""The tasks that submissions are graded on."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from accuracy_core.errors import ConfigurationError
from accuracy_core.grading.shape import StepConfig

#: measured tolerances, with what they were measured on
TOLERANCES = Path(__file__).with_name("task_tolerances.json")
#: the shape of a 1B model; tasks for the CPU keep its proportions at an eighth of the width
ONE_B = StepConfig(layers=16, hidden=2048, ffn=8192, heads=32, kv_heads=8, head_dim=64, vocab=128_256, context=512)
SMALL = StepConfig(layers=4, hidden=256, ffn=1024, heads=4, kv_heads=1, head_dim=64, vocab=4096, context=128)


@dataclass(frozen=True)
class GradeTask:
    """`tolerance`: full-logit relative error; `provenance` says where it comes from. `sequences` are compared before
    the timed ones, which are others and are compared as well."""

    name: str
    config: StepConfig
    tolerance: float
    provenance: str
    launches: int = 8
    dominant_share: float = 0.90
    steps: int = 8
    sequences: int = 3
    timed_repeats: int = 5
    time_limit_s: float = 120
    memory_limit_bytes: int = 8 << 30
    scale: str = "small"


def _task(name: str, config: StepConfig, **settings: Any) -> GradeTask:
    measured = _measured()[name]
    return GradeTask(name, config, measured["tolerance"], measured["provenance"], **settings)


@cache
def _measured() -> dict[str, Any]:
    """What `python -m accuracy_core.grading.calibrate_tasks` wrote."""
    found: dict[str, Any] = json.loads(TOLERANCES.read_text(encoding="utf-8"))["tasks"]
    return found


#: shapes and lengths of the tasks, apart from what is measured on them
SHAPES: dict[str, tuple[StepConfig, int]] = {
    "bf16": (SMALL, 8),
    "fp8": (replace(SMALL, fp8_weights=True), 8),
    "long-context": (replace(SMALL, context=32_768, layers=2), 4),
}
TASKS: dict[str, GradeTask] = {name: _task(name, config, steps=steps) for name, (config, steps) in SHAPES.items()}


def grade_task(name: str, scale: str = "small") -> GradeTask:
    """A task by name; `scale` "1b" gives it the 1B shape. Raises ConfigurationError, with near names."""
    if name not in TASKS:
        near = difflib.get_close_matches(name, TASKS, n=1)
        raise ConfigurationError(
            f"unknown task {name!r}", fix=f"did you mean {near[0]!r}?" if near else f"known: {', '.join(TASKS)}"
        )
    task = TASKS[name]
    if scale == "1b":
        config = replace(ONE_B, fp8_weights=task.config.fp8_weights, context=max(512, task.config.context))
        return replace(task, config=config, scale=scale)
    return task
