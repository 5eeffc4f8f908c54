"""Wrong parameters of a module validation are found before anything is loaded."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from accuracy_core.errors import ConfigurationError
from accuracy_core.models import resolve_model
from accuracy_core.pipeline.module_checks import check_module_validation
from accuracy_core.schemas import EngineSpec, FaultSpec, ModuleParameters, RunParameters


def check(engine: EngineSpec | None = None, **settings) -> None:
    engine = engine or EngineSpec(model="embedded")
    parameters = RunParameters(
        engine=engine, stages=["module_validation"], module_validation=ModuleParameters(**settings)
    )
    check_module_validation(parameters, str(resolve_model("embedded", need_tokenizer=False)))


def test_it_is_run_on_request_only():
    assert "module_validation" not in RunParameters().stages
    check()
    check(kinds=["mlp", "attention"], layers=[0, 3])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"kinds": ["router"]}, "no router logits"),
        ({"kinds": ["mlp", "experts"]}, "choose from embedding"),
        ({"kinds": ["atention"]}, "attention"),
        ({"layers": [0, 99]}, "layer 99"),
        ({"prefill": 100_000}, "do not fit"),
    ],
)
def test_what_the_model_does_not_have(settings, says):
    with pytest.raises(ConfigurationError) as caught:
        check(**settings)
    assert says in str(caught.value)


def test_lengths_beyond_the_engines_context():
    with pytest.raises(ConfigurationError, match="context of 24"):
        check(EngineSpec(model="embedded", max_model_len=24))
    check(EngineSpec(model="embedded", max_model_len=29))


def test_a_fault_needs_an_engine():
    with pytest.raises(ConfigurationError, match="one_layer runs none"):
        check(EngineSpec(model="embedded", fault=FaultSpec(name="mlp-scale")), executor="one_layer")


@pytest.mark.parametrize("settings", [{"n_inputs": 0}, {"prefill": 0}, {"layers": []}, {"kinds": []}, {"layers": [-1]}])
def test_nothing_is_not_asked(settings):
    with pytest.raises(ValidationError):
        ModuleParameters(**settings)
