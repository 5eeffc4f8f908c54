"""The faults that can be injected, by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping

from accuracy_core.errors import ConfigurationError
from accuracy_core.faults.fault import Fault, ResolvedFault
from accuracy_core.schemas import FaultSpec


class FaultRegistry(Mapping[str, Fault]):
    """Name -> fault. Faults are made on first use: their injection imports torch, their names do not."""

    def __init__(self, makers: Mapping[str, Callable[[], Fault]]) -> None:
        self._makers = dict(makers)

    def __getitem__(self, name: str) -> Fault:
        """Raises ConfigurationError, with near names, when there is no such fault."""
        try:
            return self._makers[name]()
        except KeyError:
            near = difflib.get_close_matches(name, self._makers, n=3, cutoff=0.4)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known faults: {', '.join(sorted(self._makers))}"
            raise ConfigurationError(f"unknown fault {name!r}", fix=hint) from None

    def __contains__(self, name: object) -> bool:
        return name in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


def _mlp_scale() -> Fault:
    from accuracy_core.faults.mlp_scale import MLP_SCALE

    return MLP_SCALE


def _kv_slot() -> Fault:
    from accuracy_core.faults.kv_slot import KV_SLOT

    return KV_SLOT


FAULTS = FaultRegistry({"mlp-scale": _mlp_scale, "kv-slot": _kv_slot})


def resolve_fault(spec: FaultSpec, *, num_layers: int | None = None) -> ResolvedFault:
    """`spec` with the fault's own defaults filled in.

    A default layer that a model of `num_layers` does not have becomes its last one. Raises ConfigurationError for an
    unknown name, and for a chosen layer that the model does not have.
    """
    fault = FAULTS[spec.name]
    layer = spec.layer if spec.layer is not None else fault.default_layer
    if spec.layer is None and layer is not None and num_layers is not None:
        layer = min(layer, num_layers - 1)
    if num_layers is not None and layer is not None and layer >= num_layers:
        raise ConfigurationError(
            f"fault {spec.name!r} in layer {layer}: the model has {num_layers} layers",
            fix=f"choose a layer from 0 to {num_layers - 1}",
        )
    strength = spec.strength if spec.strength is not None else fault.default_strength
    return ResolvedFault(spec.name, layer, strength, spec.position or 0, dict(spec.params))
