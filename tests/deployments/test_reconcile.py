"""Runs without a process are ended on the server; everything else is left alone."""

from __future__ import annotations

import os
from types import SimpleNamespace
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.states import Cancelling, Running

from deployments import reconcile as module
from deployments.reconcile import is_running_here, reconcile


class Server:
    def __init__(self, runs, workers=()):
        self.runs, self.workers, self.ended = runs, workers, {}

    def read_workers_for_work_pool(self, pool):
        return [SimpleNamespace(name=name, status=status) for name, status in self.workers]

    def read_flow_runs(self, **filters):
        return self.runs

    def set_flow_run_state(self, run_id, state, force):
        assert force
        self.ended[run_id] = state.name


@pytest.fixture(autouse=True)
def cancelled(monkeypatch):
    """Ids of the runs whose children were cancelled."""
    found = []
    monkeypatch.setattr(module, "cancel_children", lambda flow, run, state: found.append(run.id))
    return found


def run(state, pid=None):
    return FlowRun(id=uuid4(), flow_id=uuid4(), name="r", state=state, infrastructure_pid=pid)


def test_a_run_whose_process_is_gone_is_crashed_with_its_children(cancelled):
    gone, never = run(Running(), "999999999"), run(Running())
    server = Server([gone, never])
    reconcile(server, "pool", "me")
    assert server.ended == {gone.id: "Crashed", never.id: "Crashed"}
    assert cancelled == [gone.id, never.id]


def test_a_run_that_was_being_cancelled_is_cancelled():
    going = run(Cancelling(), "999999999")
    server = Server([going])
    reconcile(server, "pool", "me")
    assert server.ended == {going.id: "Cancelled"}


def test_a_process_with_a_recycled_pid_is_not_the_run():
    assert not is_running_here(run(Running(), str(os.getpid())))


def test_a_run_that_lives_is_left_alone():
    live = run(Running())
    with_id = live.model_copy(update={"infrastructure_pid": f"host:{_process_with(str(live.id)).pid}"})
    try:
        server = Server([with_id])
        assert reconcile(server, "pool", "me") == []
        assert server.ended == {}
    finally:
        for process in _started:
            process.kill()
            process.wait()


def test_a_pool_that_another_host_polls_is_left_alone():
    server = Server([run(Running(), "999999999")], [("pool-other", "ONLINE"), ("me", "ONLINE")])
    (line,) = reconcile(server, "pool", "me")
    assert "pool-other" in line
    assert server.ended == {}
    server.workers = [("pool-other", "OFFLINE")]
    reconcile(server, "pool", "me")
    assert list(server.ended.values()) == ["Crashed"]


_started = []


def _process_with(text):
    import subprocess

    process = subprocess.Popen(["sleep", "60"], env={"PREFECT__FLOW_RUN_ID": text})
    _started.append(process)
    return process
