"""Life and death of real vLLM processes: whatever dies, nothing of the engine is left and the cores are free."""

from __future__ import annotations

import json
import os
import signal
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accuracy_core.engines.cores import cores_free, lease_cores
from accuracy_core.engines.offline import OfflineVllmEngine
from accuracy_core.engines.server import start_server
from accuracy_core.errors import ConfigurationError, EngineArgumentError, EngineDiedError
from accuracy_core.schemas import EngineSpec, FaultSpec, Platform, ReplayRequest

from .conftest import MAX_MODEL_LEN, Creator, Replayed, wait_until

pytestmark = pytest.mark.slow

GONE_WITHIN_S = 15


@pytest.fixture
def spec(engine_python: Path) -> EngineSpec:
    return EngineSpec(model="embedded", python=str(engine_python), max_model_len=MAX_MODEL_LEN)


def complete(base_url: str, request: ReplayRequest, count: int) -> dict[str, Any]:
    body = {
        "model": "embedded",
        "prompt": request.prompt_token_ids,
        "max_tokens": count,
        "temperature": 0,
        "logprobs": 5,
        "return_tokens_as_token_ids": True,
        "ignore_eos": True,
    }
    post = urllib.request.Request(
        f"{base_url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(post, timeout=60) as answer:
        choice: dict[str, Any] = json.load(answer)["choices"][0]
    return choice


def assert_gone(creator: Creator) -> None:
    assert wait_until(lambda: not creator.tree() and cores_free(Platform.CPU), GONE_WITHIN_S), creator.tree()


def test_server_answers_and_goes_when_creator_and_supervisor_are_killed(
    creator: Callable[..., Creator], spec: EngineSpec, own_locks: Path, traces: list[ReplayRequest]
) -> None:
    running = creator("server", spec)
    choice = complete(running.said["base_url"], traces[0], 8)
    assert len(choice["logprobs"]["tokens"]) == 8
    assert len(running.tree()) >= 3, "supervisor, API server and engine core were expected"
    assert not cores_free(Platform.CPU)
    running.kill(supervisor=True)
    assert_gone(running)


def test_faulty_server_goes_when_its_creator_is_killed_with_a_request_in_flight(
    creator: Callable[..., Creator],
    spec: EngineSpec,
    own_locks: Path,
    traces: list[ReplayRequest],
    replayed: Callable[..., Replayed],
) -> None:
    """The served model has the fault: its log-probabilities are the faulty offline rows', not the clean ones'."""
    request = traces[0]
    clean, faulty = (replayed(fault=fault).rows[request.request_id][0].log_softmax(-1) for fault in (None, "mlp-scale"))
    running = creator("server", spec.model_copy(update={"fault": FaultSpec(name="mlp-scale")}))
    top = complete(running.said["base_url"], request, 1)["logprobs"]["top_logprobs"][0]
    served = {int(name.split(":")[1]): value for name, value in top.items()}
    for token, value in served.items():
        assert value == pytest.approx(faulty[token].item(), abs=1e-4)
    assert any(abs(value - clean[token].item()) > 1e-3 for token, value in served.items())

    def long_request() -> None:
        try:
            complete(running.said["base_url"], request, 90)
        except OSError:
            pass  # the server is killed under it

    client = threading.Thread(target=long_request)
    client.start()
    running.kill()
    client.join()
    assert_gone(running)


def test_offline_engine_goes_when_its_creator_is_killed(
    creator: Callable[..., Creator], spec: EngineSpec, own_locks: Path
) -> None:
    running = creator("offline", spec)
    assert len(running.tree()) >= 2
    running.kill()
    assert_gone(running)
    with lease_cores(spec, timeout_s=0) as lease:
        assert lease.cores == (0,)


def test_offline_engine_that_dies_in_mid_run(spec: EngineSpec, own_locks: Path, traces: list[ReplayRequest]) -> None:
    with OfflineVllmEngine(spec) as engine:
        process = engine._process
        assert process is not None

        def kill_after_first(done: int, total: int) -> None:
            os.kill(engine.pid, signal.SIGKILL)

        with pytest.raises(EngineDiedError) as caught:
            engine.replay(traces, kill_after_first)
        assert caught.value.log_tail
    assert not process.alive()
    assert cores_free(Platform.CPU)


def test_unknown_argument_of_the_offline_engine(spec: EngineSpec, own_locks: Path) -> None:
    wrong = spec.model_copy(update={"engine_args": {"no_such_thing": 1}})
    with pytest.raises(EngineArgumentError, match="no_such_thing"):
        OfflineVllmEngine(wrong)
    assert cores_free(Platform.CPU)


def test_unknown_argument_of_the_server(spec: EngineSpec, own_locks: Path, tmp_path: Path) -> None:
    wrong = spec.model_copy(update={"engine_args": {"no_such_thing": 1}})
    with lease_cores(spec) as lease, pytest.raises(EngineArgumentError, match="no-such-thing") as caught:
        start_server(wrong, lease, log_path=tmp_path / "server.log")
    assert "unrecognized arguments" in caught.value.log_tail
    assert cores_free(Platform.CPU)


def test_context_longer_than_the_model_is_a_configuration_error(
    spec: EngineSpec, own_locks: Path, tmp_path: Path
) -> None:
    wrong = spec.model_copy(update={"max_model_len": 4096})
    with lease_cores(spec) as lease, pytest.raises(ConfigurationError, match="max_model_len"):
        start_server(wrong, lease, log_path=tmp_path / "server.log")
    assert cores_free(Platform.CPU)
