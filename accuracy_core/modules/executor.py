"""Who runs a module, and what it is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from accuracy_core.modules.kinds import Wiring

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ModuleInput:
    """One seeded input. `rows`: tap -> float32 (prefill + decode, features), exactly representable in the target's
    dtype; `token_ids` of the same length."""

    wiring: Wiring
    token_ids: list[int]
    prefill: int
    rows: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def decode(self) -> int:
        return len(self.token_ids) - self.prefill


@runtime_checkable
class ModuleExecutor(Protocol):
    """A target whose modules can be run on given inputs. A context manager.

    `run` feeds the rows at the wiring's taps, the first `prefill` of them in one call and the others token by token
    through the KV cache, and returns what is read: tap -> (prefill + decode, features) in the target's dtype. Raises
    NotMeasuredError for a module that the target does not have, or cannot be fed.
    """

    name: str

    def run(self, given: ModuleInput) -> dict[str, torch.Tensor]: ...

    def __enter__(self) -> ModuleExecutor: ...

    def __exit__(self, *exc: object) -> None: ...
