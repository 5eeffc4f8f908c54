"""Starting, following and ending the process that runs lm-eval."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accuracy_core
from accuracy_core.errors import ConfigurationError
from accuracy_core.evals.eval_job import EvalJob, EvaluationFailed

_LOG_NAME = "lm_eval.log"
_LOG_TAIL_LINES = 15
_END_GRACE_S = 3.0


def run_child(job: EvalJob, on_progress: Callable[[int, int], None] | None) -> dict[str, Any]:
    """Run `job` in a child process and return its closing event.

    What lm-eval logs goes to `results_dir/lm_eval.log`. Whatever ends this call (also Ctrl-C) ends the child.
    """
    log_path = Path(job.results_dir) / _LOG_NAME
    with log_path.open("a", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "accuracy_core.evals.lm_eval_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            encoding="utf-8",
            env=_environment(job),
            start_new_session=True,  # Ctrl-C reaches this process only, which then ends the child
        )
        try:
            return _follow(process, job, on_progress, log_path)
        finally:
            _end(process)


def _follow(
    process: subprocess.Popen[str], job: EvalJob, on_progress: Callable[[int, int], None] | None, log: Path
) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(job.model_dump_json() + "\n")  # stays open: its end is the child's signal to die
    process.stdin.flush()
    progress: dict[str, Any] = {}
    for line in process.stdout:
        event = json.loads(line)
        kind = event.pop("event")
        if kind == "progress":
            progress = event
            if on_progress is not None:
                on_progress(event["done"], event["total"])
        elif kind == "done":
            return dict(event)
        elif kind == "error":
            raise _error(event, job, log)
    code = process.wait()
    raise _error(
        {"kind": "died", "message": f"the evaluation process ended with status {code}", "progress": progress}, job, log
    )


def _error(event: dict[str, Any], job: EvalJob, log: Path) -> Exception:
    kind, message, fix = event["kind"], event["message"], event.get("fix", "")
    progress = event.get("progress") or {}
    done, total = progress.get("done", 0), progress.get("total", 0)
    if kind == "configuration":
        return ConfigurationError(message, fix=fix)
    per_task = {task: (int(a), int(b)) for task, (a, b) in progress.get("per_task", {}).items()}
    where = ", ".join(f"{task} {a}/{b}" for task, (a, b) in per_task.items())
    kept = "; a retry asks only what is missing" if job.cache_dir and job.cache_identity else ""
    scores = {key: (value, int(n)) for key, (value, n) in progress.get("partial_scores", {}).items()}
    so_far = "; so far ".join(["", ", ".join(f"{key} {value:.4g} (n={n})" for key, (value, n) in scores.items())])
    failed = EvaluationFailed(
        f"{message}. The evaluation stopped after {done} of {total} requests"
        f"{f' ({where})' if where else ''}{so_far if scores else ''}{kept}.",
        fix=fix or "see the server's log, then run it again",
        # a failed request is the server's doing, and its log tells why, not lm-eval's
        log_tail="" if kind == "infrastructure" else _tail(log),
    )
    failed.done, failed.total, failed.per_task, failed.partial_scores = done, total, per_task, scores
    return failed


def _environment(job: EvalJob) -> dict[str, str]:
    package_root = str(Path(accuracy_core.__file__).parents[1])
    search = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(search),
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(job.num_threads),
    }


def _end(process: subprocess.Popen[str]) -> None:
    """End the child and whatever it started."""
    if process.stdin:
        process.stdin.close()
    try:
        process.wait(_END_GRACE_S)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    process.wait()
    if process.stdout:
        process.stdout.close()


def _tail(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(line[:300] for line in lines[-_LOG_TAIL_LINES:])
