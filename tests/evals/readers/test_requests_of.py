from __future__ import annotations

import json

import pytest

from accuracy_core.evals.readers.requests_of import sent_request

MESSAGES = [{"role": "system", "content": "be short"}, {"role": "user", "content": "2+2?"}]
KWARGS = {"until": ["\n"], "max_gen_toks": 5}


@pytest.mark.parametrize(
    "arguments",
    [
        {"gen_args_0": {"arg_0": "text", "arg_1": KWARGS}},
        [["text", KWARGS]],
        [("text", KWARGS)],
        {"arg_0": "text", "arg_1": KWARGS},
    ],
)
def test_text(arguments: object) -> None:
    request = sent_request(arguments)
    assert (request.kind, request.prompt, request.gen_kwargs) == ("text", "text", KWARGS)


@pytest.mark.parametrize(
    "context",
    [MESSAGES, json.dumps(MESSAGES), [json.dumps(MESSAGES)], [{**item, "type": "text"} for item in MESSAGES]],
)
def test_chat(context: object) -> None:
    request = sent_request({"gen_args_0": {"arg_0": context, "arg_1": KWARGS}})
    assert (request.kind, request.messages) == ("chat", MESSAGES)
    assert json.loads(request.prompt) == MESSAGES


def test_more_than_ten_choices_stay_in_order() -> None:
    arguments = {f"gen_args_{number}": {"arg_0": "Q", "arg_1": f" {number}"} for number in range(12)}
    shuffled = dict(sorted(arguments.items()))
    assert sent_request(shuffled).continuations == [f" {number}" for number in range(12)]


def test_rolling_log_likelihood() -> None:
    request = sent_request({"gen_args_0": {"arg_0": "a whole page"}})
    assert (request.kind, request.prompt, request.continuations) == ("loglikelihood", "", ["a whole page"])


@pytest.mark.parametrize("context", ["[1, 2", "[an aside] and so on", "[]", '["a"]', '[{"no": "role"}]'])
def test_text_that_looks_like_a_chat(context: str) -> None:
    request = sent_request([[context, KWARGS]])
    assert (request.kind, request.prompt) == ("text", context)


@pytest.mark.parametrize("arguments", [None, [], {}, "odd", 3, [[]], {"gen_args_0": {}}, [3]])
def test_never_raises(arguments: object) -> None:
    assert sent_request(arguments).kind in ("text", "loglikelihood")
