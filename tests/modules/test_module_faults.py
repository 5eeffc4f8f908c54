"""Every fault of the registry that acts in a module fails that module's check, and the module is named."""

from __future__ import annotations

import contextlib
import functools
import json
from pathlib import Path

import pytest

from accuracy_core.engines.registry import open_engine
from accuracy_core.faults import FAULTS, resolve_fault
from accuracy_core.models.architectures import architecture_checkpoint
from accuracy_core.modules import Plan, validate_modules
from accuracy_core.modules.engine_executor import EngineModuleExecutor
from accuracy_core.schemas import EngineSpec, FaultSpec

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma2", "mixtral", "llama3-rope")
FAULTY = [name for name, fault in FAULTS.items() if fault.level in ("tensors", "kv") and fault.judged_by == "triage"]


@functools.cache
def config_of(architecture: str) -> dict:
    return json.loads((architecture_checkpoint(architecture) / "config.json").read_text())


def possible(fault: str) -> str | None:
    return next((a for a in ARCHITECTURES if not FAULTS[fault].why_not(config_of(a), "transformers")), None)


@pytest.fixture(scope="module")
def engines():
    with contextlib.ExitStack() as stack:
        yield functools.cache(
            lambda architecture: stack.enter_context(
                open_engine(EngineSpec(model=str(architecture_checkpoint(architecture)), engine="transformers"))
            )
        )


def owns(check, place: str) -> bool:
    return any(place == tap or place.startswith(f"{tap}.") for tap in check.taps)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTY)
def test_the_module_of_the_fault_fails(name, engines, tmp_path: Path):
    architecture = possible(name)
    assert architecture is not None, "no architecture of the test can have this fault"
    config, engine = config_of(architecture), engines(architecture)
    fault = resolve_fault(FaultSpec(name=name), config=config, engine="transformers")
    engine.set_fault(FaultSpec(name=name))
    try:
        result = validate_modules(
            str(architecture_checkpoint(architecture)),
            EngineModuleExecutor(engine, config, tmp_path),
            layers=[fault.layer or 0],
            plan=Plan(seeds=2, prefill=24, decode=4),
        )
    finally:
        engine.set_fault(None)
    places = FAULTS[name].places(fault, config)
    failed = [check for check in result.failed if check.kind != "decoder_layer"]
    assert any(owns(check, place) for check in failed for place in places), (places, [c.name for c in failed])
    inside = {part for part in ("self_attn", "mlp") if any(f".{part}" in place for place in places)}
    if "mlp" not in inside:
        assert "mlp" not in {check.kind for check in failed}
    if "self_attn" not in inside:
        assert not {"attention", "rope"} & {check.kind for check in failed}
