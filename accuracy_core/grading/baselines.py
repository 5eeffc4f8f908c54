"""What a score compares to: the unfused reference, eager and compiled, and the time that reading the bytes takes."""

from __future__ import annotations

import math
import platform
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from accuracy_core.grading import unfused
from accuracy_core.grading.process import SubmissionFailed, SubmissionProcess
from accuracy_core.grading.result import Baselines
from accuracy_core.grading.shape import KvCache, StepConfig, Weights, bytes_per_step, make_cache, make_tokens
from accuracy_core.grading.task import GradeTask
from accuracy_core.grading.timing import Timed, run_sequence

_REPEATS = 7


def measure_baselines(task: GradeTask, weights: Weights, file: Path, parent: Path, device: str, seed: int) -> Baselines:
    """All of them on one thread; `file` holds `weights`, `parent` is a temporary folder. What fails is a note."""
    notes: dict[str, str] = {}
    eager, compiled = Timed(), math.nan
    try:
        eager = _eager(task, file, parent, device, seed)
    except SubmissionFailed as failure:
        notes["eager"] = str(failure)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        compiled = captured_step(task.config, weights) if device == "cuda" else compiled_step(task.config, weights)
    except Exception as error:  # whatever a compiler may say: there is one figure less
        notes["compiled or graph"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    finally:
        torch.set_num_threads(threads)
    bandwidth, needed = measured_bandwidth(device), bytes_per_step(task.config)
    return Baselines(
        eager=eager.seconds_per_step,
        eager_busy=eager.busy,
        compiled=compiled,
        floor=needed / bandwidth,
        bandwidth_bytes_per_s=bandwidth,
        bytes_per_step=needed,
        notes=notes,
    )


def _eager(task: GradeTask, file: Path, parent: Path, device: str, seed: int) -> Timed:
    """The reference as a submission: in a process of the same kind, by the same clock."""
    folder = parent / "eager"
    folder.mkdir()
    submission = Path(shutil.copy(unfused.__file__, folder / "reference.py"))
    timed = Timed()
    with SubmissionProcess(submission, folder, file, task, device) as process:
        process.build()
        run_sequence(process, task, seed, device)  # the first one warms up
        for repeat in range(task.timed_repeats):
            run_sequence(process, task, seed + 2 * repeat, device, timed)
    return timed


class NoCompiler(Exception):
    """There is nothing to compile with."""


@torch.inference_mode()
def compiled_step(config: StepConfig, weights: Weights) -> float:
    """Seconds of one step compiled by torch for the CPU. Raises NoCompiler where there is no C++ compiler."""
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        raise NoCompiler("no C++ compiler on this machine")
    step = unfused.build(config, weights)
    cache = make_cache(config, 0, 1)
    ids = make_tokens(config, 1, 1)[0]
    whole = torch.compile(lambda t, k, v: step(t, KvCache(k, v, config.context)))
    whole(ids, cache.k, cache.v)  # compiles
    return _best_median(lambda: whole(ids, cache.k, cache.v))


@torch.inference_mode()
def captured_step(config: StepConfig, weights: Weights) -> float:
    """Seconds of one step replayed from a captured CUDA graph: eager decoding is bound by Python, this is not."""
    step = unfused.build(config, {name: tensor.cuda() for name, tensor in weights.items()})
    cache = make_cache(config, 0, 1)
    cache = KvCache(cache.k.cuda(), cache.v.cuda(), config.context)
    ids = make_tokens(config, 1, 1)[0].cuda()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step(ids, cache)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(ids, cache)

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return _best_median(replay)


def _best_median(step: Callable[[], object]) -> float:
    times = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def measured_bandwidth(device: str = "cpu", size: int = 256 << 20, repeats: int = 5) -> float:
    """Bytes per second read: the best of several sums over a buffer larger than the caches, on one thread of a CPU."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        buffer = torch.ones(size // 4 if device == "cpu" else size, dtype=torch.float32, device=device)
        best = math.inf
        for _ in range(repeats):
            began = time.perf_counter()
            float(buffer.sum())  # as a number of the host: waits for the device
            best = min(best, time.perf_counter() - began)
        return buffer.nbytes / best
    finally:
        torch.set_num_threads(threads)


def machine_name(device: str) -> str:
    """The card, or the CPU's architecture with the instructions that torch uses."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
