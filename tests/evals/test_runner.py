"""What run_lm_eval refuses before it starts anything, and its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from accuracy_core.errors import ConfigurationError, InfrastructureError
from accuracy_core.evals.eval_job import EvalJob, EvaluationFailed
from accuracy_core.evals.presets import PRESETS, run_accuracy_gsm8k_cot, run_preset
from accuracy_core.evals.runner import run_lm_eval
from accuracy_core.models.resolve import embedded_model
from tests.evals.scripted_server import MODEL, Answer, generated, serve

TOKENIZER = str(embedded_model())
_END_S = 20


def ask(url: str, results: Path, **changes: Any) -> Any:
    fields = {"base_url": url, "model": MODEL, "tokenizer": TOKENIZER, "results_dir": results, "limit": 2}
    tasks = changes.pop("tasks", ["assay_suite"])
    return run_lm_eval(tasks, **(fields | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": ["assay_arit"]}, "did you mean 'assay_arith'"),
        ({"tasks": []}, "no task"),
        ({"tasks": "assay_arith"}, "must be a list"),
        ({"tasks": ["assay_arith", "assay_arith"]}, "named twice"),
        ({"limit": 0}, "limit 0"),
        ({"limit": -3}, "limit -3"),
        ({"num_concurrent": 0}, "num_concurrent"),
        ({"include_path": "no/such/folder"}, "no directory"),
        ({"base_url": "localhost:8000"}, "no http address"),
        ({"chat": True}, "assay_mc_add, assay_mc_sub"),
        ({"api_key_env": "NO_SUCH_VARIABLE"}, "NO_SUCH_VARIABLE"),
        ({"model": "another"}, "serves no model 'another', but 'scripted'"),
    ],
)
def test_refused_before_anything_is_asked(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with serve() as (url, server):
        with pytest.raises(ConfigurationError, match=message):
            ask(url, tmp_path, **changes)
        assert server.requests == []


def test_results_dir_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with serve() as (url, _), pytest.raises(ConfigurationError, match="cannot be made"):
        ask(url, tmp_path / "file" / "out")


def test_no_server(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="no OpenAI-compatible server answers"):
        ask("http://127.0.0.1:9", tmp_path)


def test_presets_name_tasks_that_exist() -> None:
    from accuracy_core.evals.preconditions import check_tasks

    for tasks in PRESETS.values():
        check_tasks(tasks)
    with pytest.raises(ConfigurationError, match="gsm8k_cot"):
        run_preset("gsm9k", "http://127.0.0.1:9", "m", "out")


@pytest.mark.slow
def test_a_whole_run(tmp_path: Path) -> None:
    """Through the child process, from another working directory, with everything a caller gets."""
    seen: list[tuple[int, int]] = []
    with serve() as (url, _):
        run = ask(f"{url}/v1", tmp_path, on_progress=lambda done, total: seen.append((done, total)))
    assert run.results_dir == tmp_path / MODEL
    assert [path.name.split("_")[0] for path in run.files] == ["results", "samples", "samples", "samples", "requests"]
    assert all(path.is_file() for path in run.files)
    assert seen[0] == (0, 18)
    assert seen[-1] == (18, 18)
    assert run.scores["assay_arith/exact_match,strict-match"] == 0.0
    assert run.settings["bos"]["prefix_ids"] == [0]
    assert run.settings["eos_string"] == "</s>"
    assert len(list(run.requests())) == run.n_requests == 18
    assert run.notes == []


def test_null_answers_fail_the_stage_but_keep_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_this_process(job: EvalJob, on_progress: object) -> dict[str, Any]:
        from accuracy_core.evals.evaluation import Evaluation

        return Evaluation(job, lambda event, **fields: None).run()

    def null(number: int, body: dict[str, Any]) -> Answer:
        return 200, {"choices": [generated(None, body["prompt"][0])]}

    monkeypatch.setattr("accuracy_core.evals.runner.run_child", in_this_process)
    with serve(null) as (url, _), pytest.raises(EvaluationFailed, match="2 of 2 generation requests with nothing"):
        ask(url, tmp_path, tasks=["assay_arith"], max_retries=1)
    assert list(tmp_path.rglob("results_*.json"))


@pytest.mark.slow
def test_missing_data_is_named_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "empty"))
    with (
        serve() as (url, server),
        pytest.raises(ConfigurationError, match=r"gsm8k_cot needs the data set .*gsm8k"),
    ):
        run_accuracy_gsm8k_cot(url, MODEL, tmp_path, limit=1, tokenizer=TOKENIZER)
    assert server.requests == []


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_the_caller(tmp_path: Path, how: signal.Signals) -> None:
    """Ctrl-C and kill -9 of the process that called run_lm_eval, while requests hang."""
    with serve(lambda number, body: (0, None)) as (url, server):
        code = (
            "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in the background
            "from accuracy_core.evals.runner import run_lm_eval\n"
            f"run_lm_eval(['assay_arith'], base_url={url!r}, model={MODEL!r}, tokenizer={TOKENIZER!r}, "
            f"results_dir={str(tmp_path)!r})\n"
        )
        caller = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
        try:
            wait_for(lambda: len(server.requests) > 0, 120)
            children = psutil.Process(caller.pid).children(recursive=True)
            assert children
            os.kill(caller.pid, how)
            assert caller.wait(_END_S) != 0
            wait_for(lambda: not any(alive(child) for child in children), _END_S)
        finally:
            caller.kill()
            caller.wait()


def alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def wait_for(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)
