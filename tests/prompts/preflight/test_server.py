"""Somebody else's server: what it shows is checked, what it does not is "not measured", and errors say what to do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from typer.testing import CliRunner

from accuracy_core.errors import ConfigurationError, InfrastructureError
from accuracy_core.models import embedded_model
from accuracy_core.outcome import Outcome
from accuracy_core.prompts.preflight.server import examine_server
from accuracy_core.prompts.tokens import load_tokenizer
from accuracy_core.schemas import Severity
from flows.cli import app
from tests.evals.scripted_server import MODEL, serve

Body = dict[str, Any]
EMBEDDED = str(embedded_model())


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(EMBEDDED, None)


def right_server(tokenizer, *, change: Callable[[list[int]], list[int]] = list, samples: bool = False):
    """Sees what the tokenizer gives, after `change`; `samples`: open requests get other tokens than greedy ones."""

    def behave(number: int, body: Body) -> tuple[int, Any]:
        if "messages" in body:
            ids = list(
                tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True, tokenize=True)["input_ids"]
            )
            return 200, {"choices": [{"message": {"content": "x"}, "token_ids": [7]}], "prompt_token_ids": ids}
        ids = change(list(tokenizer(body["prompt"]).input_ids))
        out = [8, 8] if samples and "temperature" not in body else [7, 8]
        return 200, {"choices": [{"text": "x", "token_ids": out, "prompt_token_ids": ids}]}

    return behave


def errors(findings):
    return {item.check for item in findings if item.severity is Severity.ERROR}


def unmeasured(findings):
    return {item.check for item in findings if item.outcome is Outcome.NOT_MEASURED}


def test_a_right_server(tokenizer):
    with serve(right_server(tokenizer)) as (url, _):
        findings = examine_server(url, checkpoint=EMBEDDED)
    assert errors(findings) == set()
    assert "tokens" not in unmeasured(findings)


def test_a_server_that_adds_a_second_bos(tokenizer):
    with serve(right_server(tokenizer, change=lambda ids: [ids[0], *ids])) as (url, _):
        assert errors(examine_server(url, checkpoint=EMBEDDED)) == {"double_bos"}


def test_a_server_that_samples_by_default(tokenizer):
    with serve(right_server(tokenizer, samples=True)) as (url, _):
        findings = examine_server(url, checkpoint=EMBEDDED)
    assert errors(findings) == {"server_sampling"}
    assert any("0%" in item.evidence for item in findings)


def test_a_context_longer_than_the_model(tokenizer):
    with serve(right_server(tokenizer), max_model_len=4096) as (url, _):
        assert errors(examine_server(url, checkpoint=EMBEDDED)) == {"max_model_len"}


def test_a_server_that_is_not_vllm(tokenizer):
    """No token ids, no /version, no chat: texts are compared, the rest is not measured."""

    def behave(number: int, body: Body) -> tuple[int, Any]:
        if "messages" in body or "max_tokens" not in body:
            return 404, {"error": {"message": "no such thing"}}
        return 200, {"choices": [{"text": "forty-six"}]}

    with serve(behave) as (url, _):
        findings = examine_server(url, checkpoint=EMBEDDED)
    assert errors(findings) == set()
    assert {"tokens", "truncation", "server"} <= unmeasured(findings)
    assert any("not vLLM" in item.evidence for item in findings)


def test_without_a_checkpoint_only_the_server_is_checked(tokenizer):
    with serve(right_server(tokenizer)) as (url, _):
        findings = examine_server(url)
    assert {"checkpoint", "tokens"} <= unmeasured(findings)
    assert errors(findings) == set()


def test_a_key_is_sent_and_not_shown(tokenizer, monkeypatch):
    monkeypatch.setenv("SOME_KEY", "s3cret-value")
    with serve(right_server(tokenizer)) as (url, script):
        shown = CliRunner().invoke(app, ["doctor", "--server", url, "--model", EMBEDDED, "--api-key-env", "SOME_KEY"])
    assert shown.exit_code == 0, shown.output
    assert {headers["Authorization"] for headers in script.headers} == {"Bearer s3cret-value"}
    assert "s3cret" not in shown.output


class _Locked(BaseHTTPRequestHandler):
    """Answers nobody without the key."""

    def do_GET(self) -> None:
        self.send_response(HTTPStatus.UNAUTHORIZED)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def test_a_server_that_needs_a_key_says_how_to_give_it():
    with ThreadingHTTPServer(("127.0.0.1", 0), _Locked) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            shown = CliRunner().invoke(app, ["doctor", "--server", f"http://127.0.0.1:{server.server_port}"])
        finally:
            server.shutdown()
            thread.join()
    assert shown.exit_code == 3
    assert "needs an API key" in shown.output
    assert "--api-key-env" in shown.output.replace("\n", "")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--api-key-env", "NO_SUCH_VARIABLE"], 3, "NO_SUCH_VARIABLE"),
        (["--served-model", "other"], 3, MODEL),
        (["--model", "/no/such/folder"], 3, "does not exist"),
    ],
)
def test_wrong_arguments_say_what_to_do(tokenizer, arguments, code, says):
    with serve(right_server(tokenizer)) as (url, _):
        shown = CliRunner().invoke(app, ["doctor", "--server", url, *arguments])
    assert shown.exit_code == code
    assert says in shown.output.replace("\n", "")


def test_a_server_that_hangs_and_one_that_is_not_there(tokenizer):
    with serve(lambda number, body: (0, None)) as (url, _), pytest.raises(InfrastructureError, match="in time"):
        examine_server(url, timeout_s=0.3)
    with pytest.raises(InfrastructureError, match="no server answers"):
        examine_server("http://127.0.0.1:9")
    with pytest.raises(ConfigurationError, match="no http address"):
        examine_server("localhost")
