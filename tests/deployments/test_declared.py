"""What is declared can be made: entrypoints, pools, queues, parameters and time zone."""

from __future__ import annotations

import pytest
from prefect.utilities.schema_tools import validate

from accuracy_core.errors import ConfigurationError
from deployments.bootstrap import QUEUES, strict_schema
from deployments.declared import declared
from flows.levels import LEVELS


def test_every_deployment_loads_and_its_default_parameters_fit_its_form():
    for one in declared():
        flow = one.flow()
        assert one.queue in QUEUES
        assert not validate(one.parameters, strict_schema(flow), ignore_required=True)


def test_device_flows_are_repeated_for_every_device_pool():
    names = {f"{one.flow().name}/{one.name}" for one in declared(["a", "b"])}
    assert {"device-eval/a", "device-eval/b", "device-prompt/a", "device-prompt/b"} <= names
    assert "device-eval/device-pool" not in names
    pools = {one.name: one.pool for one in declared(["a", "b"]) if one.flow().name == "device-eval"}
    assert pools == {"a": "a", "b": "b"}


def test_what_flows_call_is_declared():
    names = {f"{one.flow().name}/{one.name}" for one in declared()}
    assert {level.deployment for level in LEVELS.values()} <= names
    assert {"accuracy-debugger/adhoc", "accuracy-debugger/ci", "nightly-regression/nightly"} <= names


@pytest.mark.parametrize(
    "parameters",
    [
        {"nonsense": 1},
        {"parameters": {"nonsense": 1}},
        {"parameters": {"engine": {"model": "m", "tensor_parallel_size": 0}}},
        {"parameters": {"engine": {"model": "m", "dtype": "int3"}}},
        {"placement": {"queue": "first"}},
        {"placement": {"device_pool": "../x"}},
    ],
)
def test_the_forms_schema_refuses_bad_and_unknown_parameters(parameters):
    flow = next(one for one in declared() if one.name == "adhoc").flow()
    assert validate(parameters, strict_schema(flow))


def test_the_time_zone_comes_from_the_environment(monkeypatch):
    def zones():
        return {entry["timezone"] for one in declared() for entry in one.schedules}

    monkeypatch.delenv("ASSAY_TIMEZONE", raising=False)
    assert zones() == {"UTC"}
    monkeypatch.setenv("ASSAY_TIMEZONE", "Europe/Zurich")
    assert zones() == {"Europe/Zurich"}
    monkeypatch.setenv("ASSAY_TIMEZONE", "Europe/Zürich-West")
    with pytest.raises(ConfigurationError, match="no time zone"):
        declared()
