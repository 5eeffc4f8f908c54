"""Grade a submission: three independent gates, then tokens per second."""

from __future__ import annotations

import math
import secrets
import shutil
import tempfile
from pathlib import Path

import torch

from accuracy_core.calibration.relative_error import relative_error
from accuracy_core.errors import ConfigurationError, NotMeasuredError
from accuracy_core.grading import sandbox, unfused
from accuracy_core.grading.baselines import machine_name, measure_baselines
from accuracy_core.grading.counting import counter
from accuracy_core.grading.process import SubmissionFailed, SubmissionProcess
from accuracy_core.grading.result import Gate, GradeResult
from accuracy_core.grading.shape import Weights, make_cache, make_tokens, make_weights
from accuracy_core.grading.task import GradeTask
from accuracy_core.grading.timing import Timed, run_sequence, seeds

WEIGHT_SEED = 7
CORRECT, LAUNCHES, DOMINANT = "correct", "launches", "dominant"
#: a submission's folder is copied; what is larger is not meant to be one
_MOST_BYTES = 1 << 29


def grade(
    submission: Path, task: GradeTask, *, device: str = "cpu", baselines: bool = True, seed: int | None = None
) -> GradeResult:
    """Run every gate that can be run, whatever the others say.

    Sequences are drawn from `seed`, by default a number that nobody knows before. The submission's folder is copied;
    its process may write to the copy only. Raises ConfigurationError when `submission` is no file or its folder is too
    large, NotMeasuredError where the kernel cannot confine a process or there is no such device.
    """
    if not submission.is_file():
        raise ConfigurationError(f"{submission} is no file", fix="give the Python file that defines build()")
    if not sandbox.available():
        raise NotMeasuredError(
            "this kernel cannot confine a process (Landlock and seccomp are needed)",
            fix="grade on Linux 5.13 or later; untrusted code is not run without a sandbox",
        )
    counter(device)
    if device == "cuda" and not torch.cuda.is_available():
        raise NotMeasuredError("there is no CUDA device here", fix="grade on the device host, or with --device cpu")
    weights = make_weights(task.config, WEIGHT_SEED)
    first = secrets.randbelow(1 << 30) if seed is None else seed
    with tempfile.TemporaryDirectory(prefix="grade-") as parent:
        folder = copied(submission, Path(parent) / "work")
        file = stored(weights, Path(parent) / "weights.safetensors")
        grading = _Grading(task, device, weights, first)
        with SubmissionProcess(folder / submission.name, folder, file, task, device) as process:
            result = grading.run(process)
        if baselines:
            measured = measure_baselines(task, weights, file, Path(parent), device, first)
            result = result.model_copy(update={"baselines": measured})
    return result.model_copy(update={"submission": submission.name})


def copied(submission: Path, folder: Path) -> Path:
    """The submission's folder without hidden files, links as links. Raises ConfigurationError for a large one."""
    source = submission.resolve().parent
    if sum(path.lstat().st_size for path in source.rglob("*") if not path.is_dir()) > _MOST_BYTES:
        raise ConfigurationError(
            f"the folder of {submission} holds more than {_MOST_BYTES >> 20} MiB",
            fix="put the submission and what it needs into a folder of its own",
        )
    shutil.copytree(source, folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    (folder / submission.name).unlink(missing_ok=True)
    shutil.copyfile(submission, folder / submission.name)
    return folder


def stored(weights: Weights, file: Path) -> Path:
    from safetensors.torch import save_file

    save_file(weights, file)
    return file


class _Grading:
    def __init__(self, task: GradeTask, device: str, weights: Weights, first: int) -> None:
        self._task, self._device, self._first = task, device, first
        self._reference = unfused.build_in(task.config, weights, torch.float32)
        self._unfused = unfused.build(task.config, weights)
        self._gates = {
            CORRECT: Gate(name=CORRECT, limit=task.tolerance),
            LAUNCHES: Gate(name=LAUNCHES, limit=task.launches),
            DOMINANT: Gate(name=DOMINANT, limit=task.dominant_share),
        }
        self._errors: dict[str, float] = {}
        self._from_unfused = math.nan

    def run(self, process: SubmissionProcess) -> GradeResult:
        error, built, timed = "", False, Timed()
        try:
            process.build()
            built = True
            self._correct(process)
            self._timed(process, timed)
        except SubmissionFailed as failure:
            error = str(failure)
        result = GradeResult(
            task=self._task.name, scale=self._task.scale, device=self._device, machine=machine_name(self._device),
            gates=list(self._gates.values()), provenance=self._task.provenance, seed=self._first,
            seconds_per_step=timed.seconds_per_step, refused=not built, error=error,
            from_unfused=self._from_unfused,
        )  # fmt: skip
        score = self._task.config.batch / result.seconds_per_step if result.passed else 0.0
        return result.model_copy(update={"score": score})

    def _correct(self, process: SubmissionProcess) -> None:
        for seed in seeds(self._first, self._task.sequences):
            self._compare(run_sequence(process, self._task, seed, self._device), seed, "sequence")

    def _timed(self, process: SubmissionProcess, timed: Timed) -> None:
        """Every repetition is another sequence, and the answers of all are compared: one that repeats what it computed
        last time, or is wrong while it is timed, is fast and fails."""
        for seed in seeds(self._first + 2 * self._task.sequences, self._task.timed_repeats):
            got = run_sequence(process, self._task, seed, self._device, timed)
            self._compare(got, seed, "timed repetition")
        unseen = timed.uncounted
        self._set(
            LAUNCHES,
            timed.launches,
            not unseen and 0 < timed.launches <= self._task.launches,
            unseen or "most in any timed step",
        )
        share = timed.dominant_share
        self._set(
            DOMINANT,
            share,
            not unseen and share >= self._task.dominant_share,
            unseen or f"longest: {timed.dominant[:200]}",
        )

    def _compare(self, got: torch.Tensor, seed: int, what: str) -> None:
        want = self._computed(self._reference, seed)
        error = relative_error(got.flatten(0, 1), want.flatten(0, 1))
        if what == "sequence":
            apart = relative_error(got.flatten(0, 1), self._computed(self._unfused, seed).flatten(0, 1))
            self._from_unfused = apart if math.isnan(self._from_unfused) else max(self._from_unfused, apart)
        self._errors[f"{what} of seed {seed}, {self._task.steps} steps"] = error
        worst = max(self._errors, key=self._errors.__getitem__)
        words = worst if math.isfinite(self._errors[worst]) else f"{worst}: NaN, infinity, or memory that nobody wrote"
        self._set(CORRECT, self._errors[worst], self._errors[worst] <= self._task.tolerance, words)

    def _set(self, name: str, value: float, passed: bool, detail: str) -> None:
        self._gates[name] = self._gates[name].model_copy(update={"value": value, "passed": passed, "detail": detail})

    @torch.inference_mode()
    def _computed(self, step: unfused.Step, seed: int) -> torch.Tensor:
        """Logits (steps, batch, vocab) float32 of a reference."""
        config, steps = self._task.config, self._task.steps
        cache, rows = make_cache(config, seed, steps), []
        for ids in make_tokens(config, seed + 1, steps):
            rows.append(step(ids, cache).float())
            cache.length += 1
        return torch.stack(rows)
