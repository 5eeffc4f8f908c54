"""What the server does by itself: failures are told to a webhook, and runs whose process has vanished are crashed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

import pytest

from benchmarks.orchestration.fleet import Fleet
from deployments.automations import ensure_automations, vanished_runs
from deployments.bootstrap import connected

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PATIENCE_S = 120
SILENCE_S = 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A server with deployments and no worker."""
    with Fleet(tmp_path_factory.mktemp("server"), []) as fleet:
        yield fleet


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[str]]]:
    """Address of a listener, and the bodies that it was sent."""
    received: list[str] = []

    class Listener(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["content-length"])).decode())
            self.send_response(204)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Listener) as listener:
        thread = threading.Thread(target=listener.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listener.server_port}/failures", received
        listener.shutdown()
        thread.join()


def set_state(server: Fleet, run_id: str, kind: str, **state: str) -> None:
    server.ask("POST", f"/flow_runs/{run_id}/set_state", json={"state": {"type": kind, **state}, "force": True})


def heartbeat(server: Fleet, run_id: str) -> None:
    event: dict[str, Any] = {
        "id": str(uuid4()),
        "event": "prefect.flow-run.heartbeat",
        "occurred": datetime.now(UTC).isoformat(),
        "resource": {"prefect.resource.id": f"prefect.flow-run.{run_id}"},
    }
    server.ask("POST", "/events", json=[event])


def test_a_webhook_hears_of_runs_that_did_not_pass_and_of_no_others(server: Fleet, webhook: Any) -> None:
    url, received = webhook
    with server.settings(), connected() as client:
        ensure_automations(client, url)
    good = server.create("accuracy-debugger/adhoc", parameters={})
    set_state(server, good, "COMPLETED", name="Completed", message="ACCURACY: score met")
    bad = server.create("accuracy-debugger/adhoc", parameters={})
    set_state(server, bad, "FAILED", name="AccuracyFailed", message="ACCURACY: score too low")
    assert server.until(lambda: received, PATIENCE_S)
    threading.Event().wait(2)
    (body,) = received
    assert "accuracy-debugger" in body
    assert "AccuracyFailed: ACCURACY: score too low" in body


def test_a_run_that_falls_silent_is_crashed_and_one_that_speaks_is_not(server: Fleet) -> None:
    with server.settings(), connected() as client:
        automation = vanished_runs(SILENCE_S)
        client.create_automation(automation.model_copy(update={"name": "the same with less patience"}))
    silent, alive, ended = (server.create("accuracy-debugger/adhoc", parameters={}) for _ in range(3))
    for run_id in (silent, alive, ended):
        set_state(server, run_id, "RUNNING", name="Running")
    threading.Event().wait(2)  # the events of the states themselves are written with a delay
    for run_id in (silent, alive, ended):
        heartbeat(server, run_id)
    set_state(server, ended, "COMPLETED", name="Completed")

    def crashed() -> bool:
        heartbeat(server, alive)
        return bool(server.run(silent)["state"]["type"] == "CRASHED")

    assert server.until(crashed, PATIENCE_S, poll_s=2)
    assert server.run(silent)["state"]["message"] == f"infra: no sign of life for {SILENCE_S} s"
    assert server.run(alive)["state"]["type"] == "RUNNING"
    assert server.run(ended)["state"]["type"] == "COMPLETED"
