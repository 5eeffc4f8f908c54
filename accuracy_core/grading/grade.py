"""Grade a submission: three independent gates, then tokens per second."""

from __future__ import annotations

import math
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import torch

from accuracy_core.calibration.relative_error import relative_error
from accuracy_core.errors import ConfigurationError, NotMeasuredError
from accuracy_core.grading import sandbox, unfused
from accuracy_core.grading.process import SubmissionFailed, SubmissionProcess
from accuracy_core.grading.result import Baselines, Gate, GradeResult
from accuracy_core.grading.shape import bytes_per_step, make_cache, make_tokens, make_weights
from accuracy_core.grading.task import GradeTask

WEIGHT_SEED = 7
CORRECT, LAUNCHES, DOMINANT = "correct", "launches", "dominant"


def grade(submission: Path, task: GradeTask, *, device: str = "cpu", baselines: bool = True) -> GradeResult:
    """Run every gate that can be run, whatever the others say.

    The submission's folder is copied; its process may write to the copy only. Raises ConfigurationError when
    `submission` is no file, NotMeasuredError where the kernel cannot confine a process.
    """
    from safetensors.torch import save_file

    if not submission.is_file():
        raise ConfigurationError(f"{submission} is no file", fix="give the Python file that defines build()")
    if not sandbox.available():
        raise NotMeasuredError(
            "this kernel cannot confine a process (Landlock and seccomp are needed)",
            fix="grade on Linux 5.13 or later; untrusted code is not run without a sandbox",
        )
    weights = make_weights(task.config, WEIGHT_SEED)
    with tempfile.TemporaryDirectory(prefix="grade-") as parent:
        folder = Path(parent) / "work"
        shutil.copytree(submission.parent, folder, ignore=shutil.ignore_patterns("__pycache__", ".git"))
        file = Path(parent) / "weights.safetensors"
        save_file(weights, file)
        result = _Grading(task, device, weights, folder).run(folder / submission.name, file)
    if baselines:
        result = result.model_copy(update={"baselines": measure_baselines(task, weights)})
    return result


class _Grading:
    def __init__(self, task: GradeTask, device: str, weights: dict[str, torch.Tensor], folder: Path) -> None:
        self._task, self._device, self._folder = task, device, folder
        self._reference = unfused.build_in(task.config, weights, torch.float32)
        self._gates = {
            CORRECT: Gate(name=CORRECT, limit=task.tolerance),
            LAUNCHES: Gate(name=LAUNCHES, limit=task.launches),
            DOMINANT: Gate(name=DOMINANT, limit=task.dominant_share),
        }
        self._seconds: list[float] = []

    def run(self, submission: Path, weights: Path) -> GradeResult:
        error = ""
        with SubmissionProcess(submission, self._folder, weights, self._task, self._device) as process:
            try:
                process.build()
                self._correct(process)
                self._count(process)
                self._timed(process)
            except SubmissionFailed as failure:
                error = str(failure)
        result = GradeResult(task=self._task.name, device=self._device, gates=list(self._gates.values()), error=error)
        if self._seconds:
            result = result.model_copy(update={"seconds_per_step": statistics.median(self._seconds)})
        score = self._task.config.batch / result.seconds_per_step if result.passed else 0.0
        return result.model_copy(update={"score": score})

    def _correct(self, process: SubmissionProcess) -> None:
        """Several sequences with poisoned memory: an element that nobody writes is NaN."""
        errors = {}
        for seed in self._task.seeds:
            errors[seed] = self._error(process, seed, poison=True)[0]
        worst = max(errors, key=errors.__getitem__)
        self._judge(errors[worst], f"seed {worst}, {self._task.steps} steps")

    def _timed(self, process: SubmissionProcess) -> None:
        """Every repetition another sequence, on seeds that were not checked before; the last one's answer is checked.

        An implementation that returns what it computed last time is fast, and wrong here.
        """
        for repeat in range(self._task.timed_repeats):
            seed = self._task.timed_seed + repeat
            error, seconds = self._error(process, seed, poison=False, check=repeat == self._task.timed_repeats - 1)
            self._seconds.append(seconds / self._task.steps)
        if not error <= self._task.tolerance:
            self._judge(error, f"last timed repetition, seed {seed}")

    def _error(self, process: SubmissionProcess, seed: int, *, poison: bool, check: bool = True) -> tuple[float, float]:
        """(relative error over all logits and steps, seconds)."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        steps, out = self._task.steps, self._folder / f"logits-{seed}.safetensors"
        seconds = process.run(out, cache_seed=seed, token_seed=seed + 1, poison=poison, steps=steps)
        if not check:
            return math.nan, seconds
        want = self._expected(seed, steps)
        try:
            got = load_file(out)["logits"]
        except (OSError, KeyError, SafetensorError) as error:
            raise SubmissionFailed(f"its logits cannot be read: {error}") from error
        if got.shape != want.shape:
            raise SubmissionFailed(f"logits of shape {tuple(got.shape)}, wanted {tuple(want.shape)}")
        return relative_error(got.flatten(0, 1), want.flatten(0, 1)), seconds

    @torch.inference_mode()
    def _expected(self, seed: int, steps: int) -> torch.Tensor:
        config = self._task.config
        cache, rows = make_cache(config, seed, steps), []
        for ids in make_tokens(config, seed + 1, steps):
            rows.append(self._reference(ids, cache).float())
            cache.length += 1
        return torch.stack(rows)

    def _count(self, process: SubmissionProcess) -> None:
        found = process.count(cache_seed=1, token_seed=2)
        launches, share = int(found["launches"]), float(found["dominant_share"])
        self._gates[LAUNCHES] = self._gates[LAUNCHES].model_copy(
            update={"value": launches, "passed": 0 < launches <= self._task.launches}
        )
        self._gates[DOMINANT] = self._gates[DOMINANT].model_copy(
            update={
                "value": share,
                "passed": share >= self._task.dominant_share,
                "detail": str(found["dominant"])[:200],
            }
        )

    def _judge(self, error: float, detail: str) -> None:
        passed = error <= self._task.tolerance
        words = detail if math.isfinite(error) else f"{detail}: NaN or infinity, or memory that nobody wrote"
        self._gates[CORRECT] = self._gates[CORRECT].model_copy(
            update={"value": error, "passed": passed, "detail": words}
        )


@torch.inference_mode()
def measure_baselines(task: GradeTask, weights: dict[str, torch.Tensor], repeats: int = 5) -> Baselines:
    """Eager step of the unfused reference on this machine, and the bandwidth floor. On one thread, CPU."""
    step = unfused.build(task.config, weights)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times = []
        for repeat in range(repeats):
            cache, ids = make_cache(task.config, repeat, 1), make_tokens(task.config, repeat, 1)[0]
            began = time.perf_counter()
            step(ids, cache)
            times.append(time.perf_counter() - began)
        bandwidth = measured_bandwidth()
    finally:
        torch.set_num_threads(before)
    needed = bytes_per_step(task.config)
    return Baselines(
        eager=statistics.median(times),
        floor=needed / bandwidth,
        bandwidth_bytes_per_s=bandwidth,
        bytes_per_step=needed,
    )


def measured_bandwidth(size: int = 256 << 20, repeats: int = 5) -> float:
    """Bytes per second that one thread reads: the best of several sums over a buffer larger than the caches."""
    buffer = torch.ones(size // 4, dtype=torch.float32)
    best = math.inf
    for _ in range(repeats):
        began = time.perf_counter()
        buffer.sum()
        best = min(best, time.perf_counter() - began)
    return size / best
