"""What a numerical fault is, and one that was chosen with all its settings filled in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from accuracy_core.schemas import Phase

if TYPE_CHECKING:
    from torch import nn

#: where a fault is visible first, coarsest level last
FaultLevel = Literal["config", "tensors", "kv", "logits"]
#: undoes an injection
Removal = Callable[[], None]


@dataclass(frozen=True)
class ResolvedFault:
    """A fault with every setting given; what is handed to an engine. `layer` None: not tied to a layer."""

    name: str
    layer: int | None
    strength: float
    position: int
    params: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Fault:
    """A fault of the registry: what it does, its defaults, and where it must show.

    `unit` says what `strength` means. `expected_module` is a dotted module name with `{layer}`; `expected_phase` and
    `level` are what a debugger has to find. `inject_hf(model, fault)` puts it into a Hugging Face model and returns
    what takes it out again; vLLM's injection of the same name is in `assay_inside.faults`.
    """

    name: str
    description: str
    default_layer: int | None
    default_strength: float
    unit: str
    expected_phase: Phase
    expected_module: str
    level: FaultLevel
    inject_hf: Callable[[nn.Module, ResolvedFault], Removal]

    def module_of(self, fault: ResolvedFault) -> str:
        """Name of the module in which `fault` must show first."""
        return self.expected_module.format(layer=fault.layer)
