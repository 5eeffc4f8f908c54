"""The API client rides out what passes and gives up, typed, on what does not."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator

import pytest

from accuracy_core.errors import ConfigurationError, InfrastructureError
from flows.remote import api as api_module
from flows.remote.api import PrefectApi, Refused
from flows.remote.following import exit_code_of

OK = (200, '{"fine": true}')
BUSY = (503, "")
LOCKED = (500, '{"exception_message": "(sqlite3.OperationalError) database is locked"}')
HANG_UP = (0, "")


class Scripted:
    """Answers one after the other; the last one for ever. Remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, str]] = [OK]
        self.asked: list[tuple[str, str | None]] = []
        script = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                script.asked.append((self.path, self.headers.get("Authorization")))
                status, text = script.answers.pop(0) if len(script.answers) > 1 else script.answers[0]
                if not status:
                    self.connection.close()
                    return
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/api"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    monkeypatch.setattr(api_module, "FIRST_PAUSE_S", 0.01)
    scripted = Scripted()
    yield scripted
    scripted.server.shutdown()
    scripted.server.server_close()


@pytest.mark.parametrize("trouble", [BUSY, LOCKED, HANG_UP, (429, ""), (502, "")])
def test_passing_trouble_is_ridden_out(server: Scripted, trouble: tuple[int, str]) -> None:
    server.answers = [trouble, trouble, OK]
    assert PrefectApi(server.url).get("/x") == {"fine": True}
    assert [path for path, _ in server.asked] == ["/api/x"] * 3


@pytest.mark.parametrize("trouble", [BUSY, LOCKED])
def test_trouble_that_stays_is_infrastructure(server: Scripted, trouble: tuple[int, str]) -> None:
    server.answers = [trouble]
    with pytest.raises(InfrastructureError, match="busy"):
        PrefectApi(server.url, patience_s=0.1).get("/x")


def test_no_server(server: Scripted) -> None:
    server.server.shutdown()
    server.server.server_close()
    with pytest.raises(InfrastructureError, match="cannot be reached"):
        PrefectApi(server.url, patience_s=0.1).get("/x")


@pytest.mark.parametrize("status", [401, 403])
def test_wrong_credentials_are_said_at_once_and_not_shown(server: Scripted, status: int) -> None:
    server.answers = [(status, "")]
    with pytest.raises(ConfigurationError, match="refuses us") as caught:
        PrefectApi(server.url, "user:secret").get("/x")
    assert len(server.asked) == 1
    assert (server.asked[0][1] or "").startswith("Basic ")
    assert "PREFECT_API_AUTH_STRING" in caught.value.fix
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("answer", [(404, "no"), (409, "bad"), (500, "a bug of the server")])
def test_a_refusal_is_not_repeated(server: Scripted, answer: tuple[int, str]) -> None:
    server.answers = [answer]
    with pytest.raises(Refused, match=answer[1]):
        PrefectApi(server.url).post("/x", {})
    assert len(server.asked) == 1


@pytest.mark.parametrize("url", ["", "localhost:4200/api", "ftp://x/api", "http://"])
def test_what_is_no_url_is_said(url: str) -> None:
    with pytest.raises(ConfigurationError, match="URL"):
        PrefectApi(url)


def test_the_link_leads_to_the_ui_without_a_password() -> None:
    api = PrefectApi("http://user:secret@host:4200/api")
    assert api.link("id") == "http://host:4200/runs/flow-run/id"


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ({"type": "COMPLETED", "name": "Completed"}, 0),
        ({"type": "FAILED", "name": "AccuracyFailed"}, 2),
        ({"type": "FAILED", "name": "ConfigurationFailed"}, 3),
        ({"type": "FAILED", "name": "Failed"}, 1),
        ({"type": "FAILED", "name": "NotMeasured"}, 1),
        ({"type": "FAILED", "name": "TimedOut"}, 1),
        ({"type": "CRASHED", "name": "Crashed"}, 1),
        ({"type": "CANCELLED", "name": "Cancelled"}, 1),
        ({"type": "CRASHED", "name": "AccuracyFailed"}, 1),
        ({}, 1),
    ],
)
def test_exit_code_of_a_state(state: dict[str, str], code: int) -> None:
    assert exit_code_of(json.loads(json.dumps(state))) == code
