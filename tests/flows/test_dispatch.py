"""Where a stage runs, how its end is read, and what is said while it waits."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from uuid import uuid4

import httpx
import pytest
from prefect.client.schemas.objects import StateType, WorkPoolStatus
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.states import Cancelled, Completed, Crashed, Failed, Running, Scheduled

from accuracy_core.errors import ConfigurationError, EngineDiedError, InfrastructureError, NotMeasuredError
from accuracy_core.pipeline.handover import leave_failure
from accuracy_core.schemas import PromptAnalysisStatus, RunDir, RunParameters, StageRecord
from flows import accuracy_debugger as main_flow
from flows import dispatch
from flows.dispatch import StageEnd, Target
from flows.placement import Placement

TARGET = Target("device-eval/device-pool", "device-pool", "adhoc")


class Api:
    """Plays the Prefect API: the states of one run, one per question, the last one for ever."""

    def __init__(self, states, pool=WorkPoolStatus.READY):
        self.states = list(states)
        self.pool = pool
        self.asked = 0

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        pass

    def read_flow_run(self, run_id):
        state = self.states[min(self.asked, len(self.states) - 1)]
        self.asked += 1
        if isinstance(state, Exception):
            raise state
        return SimpleNamespace(
            id=run_id, state=state, start_time="now" if state.type is not StateType.CRASHED else None
        )

    def read_work_pool(self, name):
        return SimpleNamespace(status=self.pool)


@pytest.fixture
def api(monkeypatch):
    """`api(states, pool=…)`; time passes a minute per look. Returns the list of what was logged."""
    clock = {"now": 0.0}
    said: list[str] = []

    def install(states, pool=WorkPoolStatus.READY):
        fake = Api(states, pool)
        monkeypatch.setattr(dispatch, "get_client", lambda sync_client: fake)
        return said

    def sleep(seconds):
        clock["now"] += 61

    monkeypatch.setattr(dispatch, "time", SimpleNamespace(monotonic=lambda: clock["now"], sleep=sleep))
    monkeypatch.setattr(dispatch, "get_run_logger", lambda: SimpleNamespace(warning=said.append))
    return install


def test_a_pool_without_a_worker_is_named_after_a_minute_and_waited_for(api):
    said = api([Scheduled()] * 4 + [Running(), Completed(message="done")], WorkPoolStatus.NOT_READY)
    end = dispatch.wait([uuid4()], TARGET)
    assert (end.name, end.message) == ("Completed", "done")
    assert len(said) == 1, "once, not at every look"
    assert "no worker polls it" in said[0]
    assert "prefect worker start --pool device-pool" in said[0]


@pytest.mark.parametrize(("pool", "words"), [(WorkPoolStatus.READY, "busy"), (WorkPoolStatus.PAUSED, "paused")])
def test_a_busy_and_a_paused_pool_are_told_apart(api, pool, words):
    said = api([Scheduled()] * 3 + [Completed()], pool)
    dispatch.wait([uuid4()], TARGET)
    assert words in said[0]


def test_the_wait_is_said_again_after_ten_minutes(api):
    said = api([Scheduled()] * 14 + [Completed()], WorkPoolStatus.NOT_READY)
    dispatch.wait([uuid4()], TARGET)
    assert len(said) == 2


def test_an_api_that_restarts_is_waited_for(api):
    away = httpx.ConnectError("refused")
    api([Running(), away, away, busy(503), Completed()])
    assert dispatch.wait([uuid4()], TARGET).kind is StateType.COMPLETED


def test_an_api_that_stays_away_is_infrastructure(api):
    api([httpx.ConnectError("refused")])
    with pytest.raises(InfrastructureError, match="away for 900 s"):
        dispatch.wait([uuid4()], TARGET)


def test_an_api_that_refuses_us_is_not_waited_for(api):
    api([busy(401)])
    with pytest.raises(InfrastructureError, match="401"):
        dispatch.wait([uuid4()], TARGET)


def busy(code):
    response = httpx.Response(code, request=httpx.Request("GET", "http://x"), text="no")
    return PrefectHTTPStatusError("no", request=response.request, response=response)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (ObjectNotFound(Exception("no")), ConfigurationError, "has no deployment device-eval/device-pool"),
        (busy(409), ConfigurationError, "refuses the parameters"),
        (busy(401), InfrastructureError, "answers 401"),
        (busy(503), InfrastructureError, "away for 900 s"),
        (httpx.ConnectError("refused"), InfrastructureError, "away for 900 s"),
    ],
)
def test_a_child_that_cannot_be_created_says_why(monkeypatch, api, error, kind, words):
    api([])

    def refuse(*arguments, **options):
        raise error

    monkeypatch.setattr(dispatch, "run_deployment", refuse)
    with pytest.raises(kind, match=words):
        dispatch.submit(TARGET, parameters=RunParameters())


def test_models_go_to_the_api_as_plain_json(monkeypatch):
    seen = {}

    def accept(name, **options):
        seen.update(options, name=name)
        return SimpleNamespace(id=uuid4())

    monkeypatch.setattr(dispatch, "run_deployment", accept)
    dispatch.submit(TARGET, parameters=RunParameters(), placement=Placement())
    assert seen["parameters"]["parameters"]["engine"]["model"] == "embedded"
    assert seen["parameters"]["placement"] == {"device_pool": "device-pool", "queue": "adhoc"}
    assert (seen["work_queue_name"], seen["timeout"]) == ("adhoc", 0)


@pytest.fixture
def on_device(tmp_path, monkeypatch):
    """`on_device(state)`: the stage's run ended so; what does the parent make of it?"""
    run_dir = RunDir.at(tmp_path)
    run = SimpleNamespace(run_dir=run_dir, location=str(tmp_path), parameters=RunParameters())
    stage = SimpleNamespace(name="device-eval")

    def call(state, failure=None):
        end = StageEnd.of(state, "run-1")
        if failure is not None:
            leave_failure(run_dir, "run-1", failure)
        monkeypatch.setattr(main_flow, "run_stage", lambda *arguments, **options: end)
        main_flow._on_device(run, stage, Placement())

    return call


@pytest.mark.parametrize("state", [Completed(), Failed(name="AccuracyFailed", message="ACCURACY: off")])
def test_a_childs_verdict_is_no_error(on_device, state):
    on_device(state)


@pytest.mark.parametrize(
    ("state", "kind", "words"),
    [
        (Crashed(message="Process exited with status code: -9"), InfrastructureError, "status code: -9"),
        (Failed(message="Flow run encountered an exception"), InfrastructureError, "ended as Failed"),
        (Cancelled(), InfrastructureError, "was cancelled"),
        (Failed(name="NotMeasured", message="no server"), NotMeasuredError, "no server"),
    ],
)
def test_a_childs_crash_is_infrastructure_and_names_its_run(on_device, state, kind, words):
    with pytest.raises(kind, match=words):
        on_device(state)


@pytest.mark.parametrize(
    "error", [ConfigurationError("9 cores needed", fix="fewer"), EngineDiedError("x", log_tail="y")]
)
def test_what_a_child_raised_is_raised_in_the_parent(on_device, error):
    with pytest.raises(type(error)) as caught:
        on_device(Crashed(message="whatever"), error)
    assert str(caught.value) == str(error)


@pytest.mark.parametrize(
    ("name", "kind"), [("ConfigurationFailed", InfrastructureError), ("NotMeasured", NotMeasuredError)]
)
@pytest.mark.parametrize("status", ["done", "cached"])
def test_a_stage_that_has_results_speaks_for_itself(tmp_path, monkeypatch, name, kind, status):
    """A plugin that was refused is no crash of its stage. Files of an earlier run are no results of this one."""
    run_dir = RunDir.at(tmp_path).create()
    run_dir.write(run_dir.prompt_analysis_json, PromptAnalysisStatus())
    parameters = RunParameters(output_dir=str(tmp_path))
    run = SimpleNamespace(run_dir=run_dir, location=str(tmp_path), parameters=parameters)
    stage = SimpleNamespace(name="device-prompt")
    end = StageEnd.of(Failed(name=name, message="unknown engine argument"), "run-1")
    monkeypatch.setattr(main_flow, "run_stage", lambda *arguments, **options: end)
    with pytest.raises(kind, match="unknown engine argument"):
        main_flow._on_device(run, stage, Placement())
    record = {"stage": "prompt_analysis", "inputs_hash": "h", "started": datetime.now(UTC), "duration_s": 1}
    run_dir.write(run_dir.stages / "prompt_analysis.json", StageRecord.model_validate({**record, "status": status}))
    main_flow._on_device(run, stage, Placement())


def test_without_a_worker_a_stage_runs_here(monkeypatch):
    calls = []

    def stage(parameters, return_state):
        calls.append(parameters)
        state = Completed(message="here")
        state.state_details.flow_run_id = uuid4()
        return state

    monkeypatch.setattr(dispatch, "submit", lambda *a, **o: pytest.fail("nothing may be submitted"))
    assert dispatch.run_stage(stage, TARGET, parameters=1).message == "here"
    assert calls == [1]


def test_a_run_that_no_worker_could_start_is_submitted_again_and_one_that_began_is_not(monkeypatch):
    ends = [StageEnd("Crashed", StateType.CRASHED, "Failed to submit", "1", began=False)] * 2
    ends.append(StageEnd("Crashed", StateType.CRASHED, "killed", "3", began=True))
    submitted = []
    monkeypatch.setattr(dispatch, "under_worker", lambda: True)
    monkeypatch.setattr(dispatch, "submit", lambda target, **given: submitted.append(given) or uuid4())
    monkeypatch.setattr(dispatch, "wait", lambda children, target: ends[len(submitted) - 1])
    assert dispatch.run_stage(None, TARGET, parameters=1).message == "killed"
    assert len(submitted) == 3
    ends[0] = StageEnd("Cancelled", StateType.CANCELLED, "", "1", began=False)
    submitted.clear()
    assert dispatch.run_stage(None, TARGET, parameters=1).name == "Cancelled"
    assert len(submitted) == 1


def test_a_server_that_restarts_while_a_child_is_created_gets_the_same_request_again(monkeypatch, api):
    api([])
    keys = []

    def away_once(name, **options):
        keys.append(options["idempotency_key"])
        if len(keys) == 1:
            raise httpx.ConnectError("refused")
        return SimpleNamespace(id=uuid4())

    monkeypatch.setattr(dispatch, "run_deployment", away_once)
    dispatch.submit(TARGET, parameters=RunParameters())
    assert len(keys) == 2
    assert len(set(keys)) == 1
