"""lm-eval itself against a scripted server, in this process: payloads, records, cache, and every way to fail."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from accuracy_core.errors import ConfigurationError, InfrastructureError
from accuracy_core.evals.eval_job import EvalJob
from accuracy_core.evals.readers.read import read_results
from accuracy_core.evals.request_log import read_records
from accuracy_core.models.resolve import embedded_model
from tests.evals.scripted_server import MODEL, Answer, generated, serve

TOKENIZER = str(embedded_model())


def job(base_url: str, results: Path, **changes: Any) -> EvalJob:
    fields = {
        "tasks": ["assay_suite"],
        "results_dir": str(results),
        "base_url": base_url,
        "model": MODEL,
        "tokenizer": TOKENIZER,
        "task_folders": [],
        "limit": 3,
        "max_length": 256,
        "num_concurrent": 4,
    }
    return EvalJob(**(fields | changes))


class Run:
    """An evaluation in this process, with its events."""

    def __init__(self, given: EvalJob) -> None:
        from accuracy_core.evals.evaluation import Evaluation

        self.events: list[tuple[str, dict[str, Any]]] = []
        self.evaluation = Evaluation(given, lambda event, **fields: self.events.append((event, fields)))

    def finish(self) -> dict[str, Any]:
        return self.evaluation.run()


def test_payloads_and_records(tmp_path: Path) -> None:
    with serve() as (url, server):
        run = Run(job(url, tmp_path))
        closing = run.finish()
    generations = [body for body in server.requests if not body.get("echo")]
    scored = [body for body in server.requests if body.get("echo")]
    assert (len(generations), len(scored)) == (3, 2 * 3 * 4)
    for body in server.requests:
        assert body["prompt"][0][0] == 0
        assert body["prompt"][0].count(0) == 1, "one BOS"
        assert body["return_token_ids"] is True
        assert (body["temperature"], body["seed"]) == (0, 1234)
    for body in generations:
        assert body["stop"] == ["\n\n", "Q:", "</s>"]
        assert body["max_tokens"] == 40
        assert (body["top_p"], body["top_k"], body["repetition_penalty"]) == (1.0, -1, 1.0)
    assert all("Authorization" not in headers for headers in server.headers)
    assert run.events[0] == ("progress", {"done": 0, "total": 27})
    assert run.events[-1] == ("progress", {"done": 27, "total": 27})
    assert closing["n_requests"] == 27
    assert closing["warnings"] == []
    records = list(read_records(Path(closing["files"][-1])))
    assert Counter(record.task for record in records) == {"assay_arith": 3, "assay_mc_add": 12, "assay_mc_sub": 12}
    choice = next(record for record in records if record.task == "assay_mc_add" and record.index == 2)
    assert choice.prompt_token_ids is not None
    assert choice.n_context_tokens is not None
    tokens = choice.prompt_token_ids[choice.n_context_tokens :]
    assert choice.logprob == pytest.approx(-sum(tokens) / 100)
    made = next(record for record in records if record.kind == "generate_until")
    assert (made.token_ids, made.finish_reason, made.text) == ([7, 1], "stop", "#### 42")
    results = read_results(closing["folder"])
    assert {row.task for row in results.sheet.rows} == {"assay_arith", "assay_mc", "assay_mc_add", "assay_mc_sub"}
    assert results.requests is not None
    assert results.requests.records("assay_arith", 0) == [made] or made.doc_id != 0


def test_concurrency_changes_nothing_that_is_sent(tmp_path: Path) -> None:
    sent = []
    for number in (1, 8):
        with serve() as (url, server):
            Run(job(url, tmp_path / str(number), num_concurrent=number, tasks=["assay_arith"])).finish()
        sent.append(sorted(json.dumps(body, sort_keys=True) for body in server.requests))
    assert sent[0] == sent[1]


def test_chat(tmp_path: Path) -> None:
    with serve() as (url, server):
        given = job(
            url, tmp_path, tasks=["assay_arith"], chat=True, system_prompt="be brief", gen_kwargs={"top_p": 0.9}
        )
        closing = Run(given).finish()
    body = server.requests[0]
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert body["stop"] == ["\n\n", "Q:", "</s>"]
    assert body["top_p"] == 0.9
    record = next(iter(read_records(Path(closing["files"][-1]))))
    assert record.prompt_token_ids == [0, 5, 6]
    [table] = read_results(closing["folder"]).samples.values()
    assert table.record(0)["arguments"]["gen_args_0"]["arg_0"][0].startswith("[{")


def test_sampled_repeats_get_seeds_of_their_own(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    (tasks / "rows.jsonl").write_text('{"q": "1+1", "a": "2"}\n{"q": "2+2", "a": "4"}\n')
    (tasks / "t.yaml").write_text(
        f"task: my_repeats\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {tasks}/rows.jsonl}}}}\n"
        "test_split: test\noutput_type: generate_until\ndoc_to_text: '{{q}}='\ndoc_to_target: '{{a}}'\nrepeats: 3\n"
        "generation_kwargs: {until: ['.'], do_sample: true, temperature: 0.7, max_gen_toks: 8}\n"
        "metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]\nmetadata: {version: 1}\n"
    )
    with serve() as (url, server):
        closing = Run(job(url, tmp_path / "out", tasks=["my_repeats"], include_path=str(tasks))).finish()
    assert Counter(body["seed"] for body in server.requests) == {1234: 2, 1235: 2, 1236: 2}
    records = list(read_records(Path(closing["files"][-1])))
    assert sorted((record.doc_id, record.repeat) for record in records) == [(d, r) for d in (0, 1) for r in (0, 1, 2)]


def test_cache_asks_only_what_is_missing_and_knows_model_and_engine(tmp_path: Path) -> None:
    died_after = 10

    def die(number: int, body: dict[str, Any]) -> Answer | None:
        return None if number <= died_after else (-1, None)

    def given(url: str, name: str, identity: str = "model A, engine 1") -> EvalJob:
        # one at a time: with several in flight, answers of the cancelled ones may be lost
        return job(url, tmp_path / name, cache_dir=str(tmp_path / "cache"), cache_identity=identity, num_concurrent=1)

    with serve(die) as (url, server):
        run = Run(given(url, "killed"))
        with pytest.raises(InfrastructureError, match="failed 3 times"):
            run.finish()
        progress = run.evaluation.progress()
    assert progress["done"] == died_after
    assert progress["total"] == 27
    assert progress["per_task"]["assay_arith"] == [3, 3]
    assert progress["partial_scores"]["assay_arith/exact_match,strict-match"] == [0.0, 3]
    first = [json.dumps(body) for body in server.requests[:died_after]]
    with serve() as (url, server):
        # the port is another one now; the answers belong to the model and the engine, not to a port
        closing = Run(given(url, "again")).finish()
    assert closing["n_from_cache"] == died_after
    assert len(server.requests) == 27 - died_after
    assert not {json.dumps(body) for body in server.requests} & set(first)
    with serve() as (url, server):
        undisturbed = Run(given(url, "other", "model B, engine 1")).finish()
    assert undisturbed["n_from_cache"] == 0
    assert len(server.requests) == 27
    scores = [read_results(found["folder"]).sheet.rows for found in (closing, undisturbed)]
    assert scores[0] == scores[1]
    assert [record.model_copy(update={"from_cache": False}) for record in _sorted(closing)] == _sorted(undisturbed)


def _sorted(closing: dict[str, Any]) -> list[Any]:
    return sorted(read_records(Path(closing["files"][-1])), key=lambda item: (item.task, item.doc_id, item.index))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((500, {"error": {"message": "boom"}}), "failed 2 times.*boom"),
        ((503, "busy"), "failed 2 times.*503"),
        ((200, b"<html>"), "not JSON"),
        ((200, {"choices": []}), "no choices"),
        ((-1, None), "failed 2 times.*Disconnected"),
        ((0, None), "time limit"),
    ],
)
def test_a_server_that_fails(tmp_path: Path, answer: Answer, message: str) -> None:
    with serve(lambda number, body: answer) as (url, _):
        given = job(url, tmp_path, tasks=["assay_arith"], max_retries=2, request_timeout_s=0.3)
        with pytest.raises(InfrastructureError, match=message):
            Run(given).finish()
    assert list(tmp_path.rglob("results_*")) == []


def test_a_server_that_fails_now_and_then(tmp_path: Path) -> None:
    with serve(lambda number, body: (500, {}) if number == 2 else None) as (url, server):
        assert Run(job(url, tmp_path, tasks=["assay_arith"])).finish()["n_requests"] == 3
    assert len(server.requests) == 4


def test_a_refused_request_is_our_own_fault(tmp_path: Path) -> None:
    refusal = (400, {"error": {"message": "maximum context length is 8 tokens"}})
    with (
        serve(lambda number, body: refusal) as (url, server),
        pytest.raises(ConfigurationError, match="maximum context length"),
    ):
        Run(job(url, tmp_path, tasks=["assay_arith"], num_concurrent=1)).finish()
    assert len(server.requests) == 1


def test_no_prompt_log_probabilities(tmp_path: Path) -> None:
    answer = (200, {"choices": [{"index": 0, "text": "", "logprobs": None}]})
    with serve(lambda number, body: answer) as (url, _), pytest.raises(ConfigurationError, match="support echo"):
        Run(job(url, tmp_path, tasks=["assay_mc_add"])).finish()


def test_log_probabilities_that_are_no_numbers(tmp_path: Path) -> None:
    def broken(number: int, body: dict[str, Any]) -> Answer:
        values = [None, *[float("nan")] * len(body["prompt"][0])]
        tops = [None, *[{"t": float("nan")}] * len(body["prompt"][0])]
        return 200, {
            "choices": [{"index": 0, "text": "", "logprobs": {"token_logprobs": values, "top_logprobs": tops}}]
        }

    with serve(broken) as (url, _):
        closing = Run(job(url, tmp_path, tasks=["assay_mc_add"])).finish()
    assert any("12 log-probabilities are not a number" in warning for warning in closing["warnings"])
    records = list(read_records(Path(closing["files"][-1])))
    assert all(math.isnan(record.logprob) for record in records)
    [table] = read_results(closing["folder"]).samples.values()
    assert table.record(0)["resps"][0][0] == ["-inf", "False"]


@pytest.mark.parametrize(
    ("text", "token_ids", "counts"),
    [
        (None, None, {"n_null": 3, "n_empty": 0, "n_unproduced": 3}),
        ("", [], {"n_null": 0, "n_empty": 3, "n_unproduced": 3}),
        ("", [1], {"n_null": 0, "n_empty": 3, "n_unproduced": 0}),
        (" \n", [2, 1], {"n_null": 0, "n_empty": 3, "n_unproduced": 0}),
    ],
)
def test_empty_and_null_responses_are_counted_and_named(
    tmp_path: Path, text: str | None, token_ids: list[int] | None, counts: dict[str, int]
) -> None:
    with serve(lambda number, body: (200, {"choices": [generated(text, body["prompt"][0], token_ids)]})) as (url, _):
        closing = Run(job(url, tmp_path, tasks=["assay_arith"], max_retries=1)).finish()
    assert {name: closing[name] for name in counts} == counts
    assert any("assay_arith doc 0" in warning for warning in closing["warnings"])


def test_prompts_that_do_not_fit_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    with serve() as (url, server):
        with pytest.raises(ConfigurationError, match=r"3 of 3 prompts of assay_arith \(longest: 12 tokens plus 40"):
            Run(job(url, tmp_path, max_length=50)).finish()
        assert server.requests == []
        closing = Run(job(url, tmp_path, max_length=50, long_prompts="truncate", tasks=["assay_arith"])).finish()
    assert any("cut on the left" in warning for warning in closing["warnings"])
    assert all(body["prompt"][0][0] == 0 for body in server.requests), "BOS is kept"
    assert not any("prefix" in warning for warning in closing["warnings"])


def test_a_double_or_missing_bos_is_named(tmp_path: Path) -> None:
    def seen(prefix: list[int]) -> Any:
        return lambda number, body: (200, {"choices": [generated("x", prefix + body["prompt"][0][1:])]})

    for prefix, word in (([0, 0], "double"), ([], "without")):
        with serve(seen(prefix)) as (url, _):
            closing = Run(job(url, tmp_path / word, tasks=["assay_arith"])).finish()
        assert any(word in warning for warning in closing["warnings"])


def test_the_key_goes_into_the_header_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret-value")
    with serve() as (url, server):
        closing = Run(job(url, tmp_path, tasks=["assay_arith"], api_key_env="MY_KEY")).finish()
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer secret-value"}
    assert all("secret-value" not in Path(path).read_text() for path in closing["files"])


def test_a_setting_that_a_task_overrules_is_named(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    folder = Path(__file__).parents[2] / "accuracy_core/evals/tasks"
    (tasks / "zero.yaml").write_text(f"include: {folder}/assay_arith.yaml\ntask: zero\nnum_fewshot: 0\n")
    with serve() as (url, _):
        run = Run(job(url, tmp_path / "out", tasks=["zero"], include_path=str(tasks), num_fewshot=2))
    assert any("num_fewshot=2 has no effect on zero" in warning for warning in run.evaluation.warnings)
