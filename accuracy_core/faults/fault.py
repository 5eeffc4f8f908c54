"""What a numerical fault is, and one that was chosen with all its settings filled in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from accuracy_core.schemas import Phase

if TYPE_CHECKING:
    from torch import nn

#: where a fault is visible first, coarsest level last
FaultLevel = Literal["config", "tensors", "kv", "logits"]
#: engines that a fault can be injected into
FaultEngine = Literal["transformers", "vllm"]
#: way of serving, by the engine's capability for it
FaultCondition = Literal["batching", "chunked_prefill", "prefix_caching"]
#: attribute of a Hugging Face model under which a wrong sampler is kept: `(row (vocab,)) -> token id`
SAMPLER = "assay_sampler"
#: undoes an injection
Removal = Callable[[], None]
#: a checkpoint's parsed config.json (its text model's part)
Config = Mapping[str, Any]


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


def every_layer(config: Config) -> Sequence[int]:
    """All decoder layers of a model."""
    return range(int(config.get("num_hidden_layers") or 0))


def always(config: Config) -> str:
    """No reason against it."""
    return ""


@dataclass(frozen=True)
class Fault:
    """A fault of the registry: what it does, its defaults, and where it must show.

    `unit` says what `strength` means. `expected_module` is a canonical tap (see `capture.taps`) with `{layer}`, `also`
    are taps that the same operation writes or that stand for it in an engine that does not show the first; with
    `expected_phase` and `level` they are what a debugger has to find. `level` config: the numbers of every module are
    right, what is wrong is what the engine was told or does around them.

    `obstacle(config)` says why a model cannot have this fault, '' when it can; `layers(config)` which layers can.
    `takes_layer` False: the fault sits in the whole model. `takes_position`: it can begin at a position.
    `condition`: the only way of serving in which the fault does anything; None: it shows in an accuracy run, one
    request at a time. `engines` are the engines it can be injected into. `inject_hf(model, fault)` puts it into a
    Hugging Face model and returns what takes it out again; vLLM's injection of the same name is in `assay_inside`.
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
    also: tuple[str, ...] = ()
    obstacle: Callable[[Config], str] = always
    layers: Callable[[Config], Sequence[int]] = every_layer
    takes_layer: bool = True
    takes_position: bool = False
    engines: tuple[FaultEngine, ...] = ("transformers", "vllm")
    vllm_obstacle: Callable[[Config], str] = always
    condition: FaultCondition | None = None

    @property
    def judged_by(self) -> Literal["triage", "engine_consistency"]:
        """What has to find it: the triage of a prompt analysis, or the comparison of runs under other conditions."""
        return "triage" if self.condition is None else "engine_consistency"

    def why_not(self, config: Config, engine: FaultEngine | None = None) -> str:
        """Why the model of `config` cannot have this fault (in `engine`, if given); '' when it can."""
        if engine is not None and engine not in self.engines:
            return f"{self.name} cannot be injected into {engine}"
        reason = self.obstacle(config)
        if not reason and engine == "vllm":
            reason = self.vllm_obstacle(config)
        if not reason and config.get("num_hidden_layers") and not self.layers(config):
            reason = "the model has no layer that it could sit in"
        return reason

    def places(self, fault: ResolvedFault, config: Config | None = None) -> list[str]:
        """Names of the modules in one of which `fault` must show first."""
        layer = fault.layer
        if layer is None:
            layers = self.layers(config) if config else []
            layer = layers[0] if layers else 0
        return [name.format(layer=layer) for name in (self.expected_module, *self.also)]

    def module_of(self, fault: ResolvedFault) -> str:
        """Name of the module in which `fault` must show first."""
        return self.places(fault)[0]
