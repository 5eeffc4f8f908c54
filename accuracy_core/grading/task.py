"""The tasks that submissions are graded on."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace

from accuracy_core.errors import ConfigurationError
from accuracy_core.grading.shape import StepConfig

#: the shape of a 1B model; tasks for the CPU keep its proportions at an eighth of the width
ONE_B = StepConfig(layers=16, hidden=2048, ffn=8192, heads=32, kv_heads=8, head_dim=64, vocab=128_256, context=512)
SMALL = StepConfig(layers=4, hidden=256, ffn=1024, heads=4, kv_heads=1, head_dim=64, vocab=4096, context=128)


@dataclass(frozen=True)
class GradeTask:
    """`tolerance`: full-logit relative error; `provenance` says where it comes from. Seeds of the correctness check and
    of the timed repetitions never overlap."""

    name: str
    config: StepConfig
    tolerance: float
    provenance: str
    launches: int = 8
    dominant_share: float = 0.90
    steps: int = 8
    seeds: tuple[int, ...] = (100, 101, 102)
    timed_seed: int = 10_000
    timed_repeats: int = 5
    time_limit_s: float = 120
    memory_limit_bytes: int = 8 << 30


_DOCUMENTED = (
    "documented: 5e-2 for the pilot tasks of the 1B shape, where the residual stream in bfloat16 and in float32 differ "
    "by .031 and both are right; not calibrated at this shape yet (tests hold both variants 1.5 times under it)"
)
TASKS: dict[str, GradeTask] = {
    "bf16": GradeTask("bf16", SMALL, 0.05, _DOCUMENTED),
    "fp8": GradeTask("fp8", replace(SMALL, fp8_weights=True), 0.05, _DOCUMENTED),
    "long-context": GradeTask("long-context", replace(SMALL, context=32_768, layers=2), 0.05, _DOCUMENTED, steps=4),
}


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
        return replace(task, config=config)
    return task
