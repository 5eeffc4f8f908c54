"""The fault of a spec with all its settings, for the model that it goes into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accuracy_core.faults import ResolvedFault, resolve_fault
from accuracy_core.faults.fault import FaultEngine
from accuracy_core.schemas import EngineSpec, FaultSpec


def injected_fault(
    spec: EngineSpec, config: Mapping[str, Any], fault: FaultSpec | None = None, *, engine: FaultEngine = "vllm"
) -> ResolvedFault | None:
    """`fault`, else the one of `spec`; None when there is none. `config`: the model's parsed config.json, {} when it is
    not to be had, and then nothing is known of where the fault can sit.

    Raises ConfigurationError as `resolve_fault`.
    """
    chosen = fault or spec.fault
    if chosen is None:
        return None
    return resolve_fault(chosen, config=config if config.get("num_hidden_layers") else None, engine=engine)
