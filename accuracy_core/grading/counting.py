"""How many kernels a step launches, and how much of its time the longest one takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from accuracy_core.errors import ConfigurationError, NotMeasuredError


@dataclass(frozen=True)
class StepCount:
    """Of one step. `dominant_share`: longest kernel's (operator's) share of the time of all."""

    launches: int
    dominant_share: float
    dominant: str


class _Dispatched(TorchDispatchMode):
    """Counts operators as they are dispatched: a whole step registered as one custom operator counts one."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def count_on_cpu(step: Callable[[], object]) -> StepCount:
    """The larger of dispatched operators and of operators without children in the profile.

    The profiler sees what a custom operator calls inside: wrapping many in one lowers nothing. `step` runs twice.
    Raises NotMeasuredError when neither saw anything.
    """
    with _Dispatched() as dispatched:
        step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
    events = [event for event in profile.events() or [] if not event.name.startswith(("ProfilerStep", "["))]
    leaves = [event for event in events if not event.cpu_children]
    launches = max(dispatched.count, len(leaves))
    if not launches or not events:
        raise NotMeasuredError("no operator was seen during a step: its work cannot be counted")
    own = [(float(event.self_cpu_time_total), event.name) for event in events]
    total = sum(time for time, _ in own)
    longest, name = max(own)
    return StepCount(launches, longest / total if total else 0.0, name)


def count_on_cuda(step: Callable[[], object]) -> StepCount:
    """Kernels on the device, from the profiler's device events: replaying a captured graph lowers nothing."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profile:
        step()
        torch.cuda.synchronize()
    kernels = [
        (float(event.time_range.elapsed_us()), event.name)
        for event in profile.events() or []
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.name.startswith(("Memcpy", "Memset"))
    ]
    if not kernels:
        raise NotMeasuredError("no kernel was seen on the device during a step: its work cannot be counted")
    total = sum(time for time, _ in kernels)
    longest, name = max(kernels)
    return StepCount(len(kernels), longest / total if total else 0.0, name)


COUNTERS: dict[str, Callable[[Callable[[], object]], StepCount]] = {"cpu": count_on_cpu, "cuda": count_on_cuda}


def counter(name: str) -> Callable[[Callable[[], object]], StepCount]:
    """Raises ConfigurationError for a counter that does not exist."""
    if name not in COUNTERS:
        raise ConfigurationError(f"unknown counter {name!r}", fix=f"known: {', '.join(COUNTERS)}")
    return COUNTERS[name]
