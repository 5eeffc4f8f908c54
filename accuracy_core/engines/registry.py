"""The engines that can be a target, by name, and the one way to open them."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accuracy_core.engines.cores import CoreLease
from accuracy_core.engines.devices import cores_needed, platform_cores
from accuracy_core.engines.protocol import TargetEngine
from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas import EngineSpec

#: makes a loaded engine; the keywords are those of `open_engine`
EngineFactory = Callable[..., TargetEngine]


@dataclass(frozen=True)
class EngineKind:
    """An entry of the registry.

    `load` imports the factory, `check` raises ConfigurationError for a spec it cannot honour.
    """

    name: str
    description: str
    has_server: bool
    load: Callable[[], EngineFactory]
    check: Callable[[EngineSpec], None]


def _load_vllm() -> EngineFactory:
    from accuracy_core.engines.offline import OfflineVllmEngine

    return OfflineVllmEngine


def _check_vllm(spec: EngineSpec) -> None:
    from accuracy_core.engines.arguments import spec_arguments
    from accuracy_core.engines.interpreter import check_interpreter, find_interpreter

    check_interpreter(find_interpreter(spec))
    spec_arguments(spec, spec.model)


def _load_served() -> EngineFactory:
    from accuracy_core.engines.served import ServedVllmEngine

    return ServedVllmEngine


def _load_transformers() -> EngineFactory:
    from accuracy_core.engines.transformers_engine import TransformersEngine

    return TransformersEngine


def _check_transformers(spec: EngineSpec) -> None:
    from accuracy_core.engines.transformers_engine import check_supported

    check_supported(spec)


ENGINES: dict[str, EngineKind] = {
    kind.name: kind
    for kind in (
        EngineKind("vllm", "vLLM in its own interpreter and process", True, _load_vllm, _check_vllm),
        EngineKind("vllm-server", "vLLM through its OpenAI server; logits only", True, _load_served, _check_vllm),
        EngineKind("transformers", "Hugging Face in this process", False, _load_transformers, _check_transformers),
    )
}


def engine_kind(name: str) -> EngineKind:
    """Raises ConfigurationError, with near names, when no engine is called `name`."""
    if name not in ENGINES:
        near = difflib.get_close_matches(name, ENGINES, n=2)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known engines: {', '.join(ENGINES)}"
        raise ConfigurationError(f"unknown engine {name!r}", fix=hint)
    return ENGINES[name]


def check_spec(spec: EngineSpec) -> None:
    """Raise ConfigurationError for what can be found wrong with `spec` without loading anything.

    Checked: the engine's name, the model, the fault and its layer, the engine's interpreter and what it has, settings
    that exclude each other or that the checkpoint does not allow, more cores than this host has.
    """
    from accuracy_core.engines.checkpoint import check_sizes, effective_config, resolve_checkpoint
    from accuracy_core.engines.injected import injected_fault

    kind = engine_kind(spec.engine)
    config = effective_config(spec, resolve_checkpoint(spec))
    injected_fault(spec, config, engine="transformers" if spec.engine == "transformers" else "vllm")
    check_sizes(spec, config)
    kind.check(spec)
    needed, there = leases_needed(spec), platform_cores(spec.platform)
    if needed > len(there):
        raise ConfigurationError(
            f"{needed} {spec.platform.value} cores needed, this host has {len(there)}",
            fix="check platform and parallel sizes",
        )


def leases_needed(spec: EngineSpec) -> int:
    """Device cores that must be leased before an engine of `spec` may start."""
    return cores_needed(spec)


def open_engine(
    spec: EngineSpec,
    *,
    lease: CoreLease | None = None,
    scratch: Path | None = None,
    log_path: Path | None = None,
    startup_timeout_s: float = 600,
    **options: Any,
) -> TargetEngine:
    """The loaded engine of `spec`; use it as a context manager. Arguments and errors as the engine's own class.

    `options` are that engine's further keywords, such as `route` of the vLLM engine.
    """
    factory = engine_kind(spec.engine).load()
    return factory(
        spec, lease=lease, scratch=scratch, log_path=log_path, startup_timeout_s=startup_timeout_s, **options
    )
