"""What an engine under test can do, and how it is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from accuracy_core.schemas import EngineSpec, ReplayConditions, ReplayRequest, ReplayResult

#: called after each finished request with (done, total)
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Capabilities:
    """Probed, never assumed. A missing capability leads to a fallback or to *not measured*."""

    forced_decode: bool = False
    raw_logits: bool = False
    kv_cache: bool = False
    hooks: bool = False
    replacement: bool = False
    prompt_logprobs: bool = False
    batching: bool = False
    chunked_prefill: bool = False
    prefix_caching: bool = False
    versions: dict[str, str] = field(default_factory=dict)


@runtime_checkable
class TargetEngine(Protocol):
    """A loaded engine. Use it as a context manager: leaving it ends every process it started.

    `replay` raises EngineDiedError when the engine is gone; a request that fails by itself comes back with
    `ReplayResult.error` set and the others go on.
    """

    name: str
    spec: EngineSpec

    @property
    def capabilities(self) -> Capabilities: ...

    def module_names(self) -> dict[str, str]:
        """Dotted module name -> class name, in the order of the engine's module tree. Empty without `hooks`."""
        ...

    def replay(self, requests: Sequence[ReplayRequest], on_progress: Progress | None = None) -> list[ReplayResult]: ...

    def close(self) -> None: ...

    def __enter__(self) -> TargetEngine: ...

    def __exit__(self, *exc: object) -> None: ...


@runtime_checkable
class ConditionalEngine(TargetEngine, Protocol):
    """An engine that can run a replay under chosen conditions of serving: batched, chunked, from the prefix cache."""

    def replay_under(self, requests: Sequence[ReplayRequest], conditions: ReplayConditions) -> list[ReplayResult]:
        """As `replay`, under `conditions`; each result tells its `conduct`.

        A condition for which the matching capability (`batching`, `chunked_prefill`, `prefix_caching`) is missing
        makes the results carry an error that says so. Whether a condition took place is for the caller to read from
        `conduct`: a scheduler may always do less than it was asked.
        """
        ...
