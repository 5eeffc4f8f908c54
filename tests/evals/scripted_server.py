"""A scripted OpenAI-compatible server on loopback: answers arithmetic, and misbehaves on demand."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "scripted"
Answer = tuple[int, Any]  # status and body


class ScriptedServer:
    """`behave(number, body)` may answer in place of the server: (status, body), or None for the normal answer."""

    def __init__(self, behave: Callable[[int, dict[str, Any]], Answer | None], max_model_len: int | None = 256) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._behave, self._length = behave, max_model_len
        self._lock = threading.Lock()

    def answer(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> Answer:
        with self._lock:
            self.requests.append(body)
            self.headers.append(headers)
            number = len(self.requests)
        return self._behave(number, body) or (200, normal_answer(path, body))

    def models(self) -> dict[str, Any]:
        return {"data": [{"id": MODEL, "root": None, "max_model_len": self._length}]}


def normal_answer(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Token 7 follows any prompt; its text is `#### 42`; log-probabilities are those of the token ids."""
    if "chat" in path:
        message = {"role": "assistant", "content": "#### 42"}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "token_ids": [7, 1]}
        return {"choices": [choice], "prompt_token_ids": [0, 5, 6]}
    prompt = body["prompt"][0]
    if body.get("echo"):
        values = [None, *[-token / 100 for token in prompt[1:]], -0.5]
        tops = [None if value is None else {"t": value} for value in values]
        return {"choices": [{"index": 0, "text": "", "logprobs": {"token_logprobs": values, "top_logprobs": tops}}]}
    return {"choices": [generated("#### 42", prompt)]}


def generated(text: str | None, prompt: list[int], token_ids: list[int] | None = None) -> dict[str, Any]:
    ids = [7, 1] if token_ids is None else token_ids
    return {"index": 0, "text": text, "finish_reason": "stop", "token_ids": ids, "prompt_token_ids": prompt}


@contextmanager
def serve(
    behave: Callable[[int, dict[str, Any]], Answer | None] = lambda number, body: None, **settings: Any
) -> Iterator[tuple[str, ScriptedServer]]:
    """(base URL, server) while the block runs. A behaviour that returns status 0 hangs; -1 drops the connection."""
    script = ScriptedServer(behave, **settings)
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def _send(self, status: int, body: Any) -> None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            self._send(200, script.models())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, answer = script.answer(self.path, body, dict(self.headers))
            if status == 0:
                ended.wait(30)
            if status <= 0:
                self.close_connection = True
                return
            self._send(status, answer)

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_address[1]}", script
    finally:
        ended.set()
        httpd.shutdown()
        httpd.server_close()
        time.sleep(0)
