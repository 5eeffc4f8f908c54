"""Real lm-eval against a real vLLM server with the embedded model, and against Hugging Face."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from accuracy_core.engines.server import RunningServer, start_server
from accuracy_core.evals.analysis import run_task_analysis
from accuracy_core.evals.analyzer import LmEvalAnalyzer
from accuracy_core.evals.eval_job import EvalRun, EvaluationFailed
from accuracy_core.evals.runner import run_lm_eval, run_reference_eval
from accuracy_core.models.resolve import embedded_model
from accuracy_core.schemas import EngineSpec

pytestmark = pytest.mark.slow
MODEL = str(embedded_model())
SPEC = EngineSpec(model="embedded", max_model_len=256, max_num_seqs=16)


class Servers:
    """Starts a server when one is needed; a test may kill it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._server = folder, None

    def running(self) -> RunningServer:
        if self._server is None or not self._server.alive:
            self.stop()
            self._server = start_server(SPEC, None, log_path=self._folder / "server.log")
        return self._server

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("evals")


@pytest.fixture(scope="module")
def servers(folder: Path) -> Iterator[Servers]:
    servers = Servers(folder)
    yield servers
    servers.stop()


def evaluate(servers: Servers, folder: Path, name: str, **settings: object) -> EvalRun:
    server = servers.running()
    return run_lm_eval(
        ["assay_suite"],
        base_url=server.base_url,
        model=server.model_name,
        tokenizer=MODEL,
        results_dir=folder / name,
        cache_dir=folder / "cache",
        **settings,
    )


@pytest.fixture(scope="module")
def undisturbed(servers: Servers, folder: Path) -> EvalRun:
    return evaluate(servers, folder, "undisturbed", cache_identity="undisturbed")


def test_vllm_against_hugging_face(undisturbed: EvalRun, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both score alike, up to the flips that the paired table lists."""
    reference = run_reference_eval(["assay_suite"], model=MODEL, results_dir=folder / "hf")
    analysis = run_task_analysis(
        LmEvalAnalyzer(),
        undisturbed.results_dir,
        {
            "assay_arith/exact_match,strict-match": 0.8,
            "assay_arith/exact_match,flexible-extract": 0.8,
            "assay_mc/acc,none": 0.8,
        },
        folder / "analysis",
        reference.results_dir,
    )
    with capsys.disabled():
        print("\n" + (folder / "analysis/task_analysis/task_report.txt").read_text())
    assert analysis.passed is True
    assert 0.75 < undisturbed.scores["assay_arith/exact_match,strict-match"] < 0.99, "there are right and wrong answers"
    assert len(analysis.status.paired) == 4
    for test in analysis.status.paired:
        flips = test.n_better - test.n_worse
        assert undisturbed.scores[test.key] - reference.scores[test.key] == pytest.approx(flips / test.n, abs=1e-9)
        assert test.n_better + test.n_worse <= 5
    worse = list(analysis.deviated_prompts)
    assert len(worse) <= sum(test.n_worse for test in analysis.status.paired)
    assert len(analysis.model_errors) > 0
    for prompt in analysis.model_errors:
        assert prompt.token_ids is not None
        assert prompt.token_ids[0] == 0
        assert prompt.token_ids.count(0) == 1
        assert prompt.output_token_ids
        assert prompt.reference_response


def test_killed_server_and_retry(undisturbed: EvalRun, servers: Servers, folder: Path) -> None:
    """The server dies at 30 %; the retry asks only what is missing; another engine never gets these answers."""
    server = servers.running()

    def kill_at_30_percent(done: int, total: int) -> None:
        if done >= 0.3 * total:
            os.kill(server.pid, signal.SIGKILL)

    with pytest.raises(EvaluationFailed) as caught:
        evaluate(servers, folder, "killed", cache_identity="A", on_progress=kill_at_30_percent)
    answered = caught.value.done
    assert 0.3 * 340 <= answered < 340
    assert f"stopped after {answered} of 340 requests" in str(caught.value)
    assert "a retry asks only what is missing" in str(caught.value)
    assert caught.value.per_task["assay_mc_add"][1] == 160
    partial, n = caught.value.partial_scores["assay_arith/exact_match,strict-match"]
    assert n == caught.value.per_task["assay_arith"][0]
    assert 0.5 < partial <= 1
    assert json.loads((folder / "killed/partial_results.json").read_text())["done"] == answered
    again = evaluate(servers, folder, "again", cache_identity="A")
    assert again.n_from_cache >= answered
    assert again.n_from_cache < 340
    assert again.scores == undisturbed.scores
    for first, second in zip(_sorted(undisturbed), _sorted(again), strict=True):
        assert (first.text, first.token_ids, first.prompt_token_ids) == (
            second.text,
            second.token_ids,
            second.prompt_token_ids,
        )
        assert first.logprob == pytest.approx(second.logprob, abs=0.2), "bfloat16, other batches"
    same = evaluate(servers, folder, "same", cache_identity="A", limit=3)
    assert same.n_from_cache == same.n_requests == 27
    other = evaluate(servers, folder, "other", cache_identity="B", limit=3)
    assert other.n_from_cache == 0


def _sorted(run: EvalRun) -> list:
    return sorted(run.requests(), key=lambda item: (item.task, item.doc_id, item.index))
