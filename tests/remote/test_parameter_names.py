"""A typo in a parameter's name is found with the deployment's own schema."""

from __future__ import annotations

import pytest
from prefect.utilities.callables import parameter_schema

from flows.remote.parameter_names import unknown_names
from flows.remote.starting import wrapped
from tests.remote.served_flow import served

SCHEMA = parameter_schema(served.fn).model_dump_for_openapi()

KNOWN = [
    {},
    {"parameters": {"engine": {"model": "m", "fault": {"name": "mlp-scale"}}, "thresholds": {"any,key": 0.5}}},
    {"parameters": {"engine": {"model": "m", "engine_args": {"anything": 1}, "fault": None}}, "ending": "pass"},
]


@pytest.mark.parametrize("given", KNOWN)
def test_what_the_schema_knows_is_not_named(given):
    assert unknown_names(given, SCHEMA) == []


@pytest.mark.parametrize(
    ("given", "path", "near"),
    [
        ({"parameter": {}}, "parameter:", "did you mean parameters?"),
        ({"parameters": {"engin": {}}}, "parameters.engin:", "engine"),
        ({"parameters": {"engine": {"modell": "m"}}}, "parameters.engine.modell:", "did you mean model"),
        ({"parameters": {"engine": {"fault": {"nam": "x"}}}}, "parameters.engine.fault.nam:", "did you mean name?"),
        ({"parameters": {"zzzzqqqq": 1}}, "parameters.zzzzqqqq:", "known are"),
    ],
)
def test_a_typo_is_named_with_what_is_near(given, path, near):
    (line,) = unknown_names(given, SCHEMA)
    assert line.startswith(path) or path in line
    assert near in line


def test_every_typo_is_named():
    assert len(unknown_names({"parameters": {"engin": 1, "stage": []}, "endin": 1}, SCHEMA)) == 3


def test_fields_of_the_one_big_argument_may_stand_alone():
    assert wrapped({"engine": {"model": "m"}}, SCHEMA) == {"parameters": {"engine": {"model": "m"}}}
    assert wrapped({"parameters": {}}, SCHEMA) == {"parameters": {}}
    assert wrapped({"ending": "fail"}, SCHEMA) == {"ending": "fail"}
    assert wrapped({}, SCHEMA) == {}
    assert wrapped({"engine": 1}, {"properties": {"other": {}}}) == {"engine": 1}
