from __future__ import annotations

import pytest

from accuracy_core.errors import ConfigurationError
from accuracy_core.faults import FAULTS, resolve_fault
from accuracy_core.schemas import FaultSpec, Phase


@pytest.mark.parametrize("name", list(FAULTS))
def test_every_fault_knows_where_it_must_show(name: str) -> None:
    fault = FAULTS[name]
    assert fault.name == name
    assert fault.description
    assert fault.unit
    assert fault.expected_phase in (Phase.PREFILL, Phase.DECODE, Phase.BOTH)
    resolved = resolve_fault(FaultSpec(name=name, layer=2))
    assert "{" not in fault.module_of(resolved)
    assert ".2." in fault.module_of(resolved)


def test_the_two_first_faults() -> None:
    assert FAULTS["mlp-scale"].expected_phase is Phase.BOTH
    assert FAULTS["mlp-scale"].default_strength == 1.05
    assert FAULTS["kv-slot"].expected_phase is Phase.DECODE
    assert FAULTS["kv-slot"].default_strength == 1


@pytest.mark.parametrize(("name", "near"), [("mlp_scale", "mlp-scale"), ("kvslot", "kv-slot")])
def test_unknown_fault_names_near_ones(name: str, near: str) -> None:
    with pytest.raises(ConfigurationError, match=f"unknown fault {name!r}") as caught:
        resolve_fault(FaultSpec(name=name))
    assert near in caught.value.fix


def test_unknown_fault_without_a_near_one_lists_all() -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve_fault(FaultSpec(name="zzzzzz"))
    assert all(name in caught.value.fix for name in FAULTS)


def test_defaults_are_filled_in_and_choices_kept() -> None:
    default = resolve_fault(FaultSpec(name="mlp-scale"))
    assert (default.layer, default.strength, default.position) == (1, 1.05, 0)
    chosen = resolve_fault(FaultSpec(name="mlp-scale", layer=3, strength=0.9, position=7, params={"a": 1}))
    assert chosen.to_dict() == {"name": "mlp-scale", "layer": 3, "strength": 0.9, "position": 7, "params": {"a": 1}}


def test_a_layer_that_the_model_does_not_have() -> None:
    with pytest.raises(ConfigurationError, match="layer 4: the model has 4 layers"):
        resolve_fault(FaultSpec(name="mlp-scale", layer=4), num_layers=4)
    assert resolve_fault(FaultSpec(name="mlp-scale"), num_layers=1).layer == 0, "the default gives way"
