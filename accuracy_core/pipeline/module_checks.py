"""What can be wrong with the parameters of a module validation, found without loading any weights."""

from __future__ import annotations

from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas import RunParameters


def check_module_validation(parameters: RunParameters, model_path: str) -> None:
    """Raise ConfigurationError for an unknown kind, a kind or a layer that the model does not have, inputs that are
    longer than its context, and a fault where no engine runs that could have it."""
    from accuracy_core.capture.reference import reference_taps
    from accuracy_core.goldens.reference_config import load_config
    from accuracy_core.modules.kinds import module_kind, module_kinds, wire
    from accuracy_core.prompts.orchestrator import context_length

    asked, engine = parameters.module_validation, parameters.engine
    kinds = module_kinds(asked.kinds)
    config = load_config(model_path, None, engine.hf_overrides or None, trust_remote_code=engine.trust_remote_code)
    count = config.get_text_config().num_hidden_layers
    beyond = [layer for layer in asked.layers if layer >= count]
    if beyond:
        raise ConfigurationError(
            f"layer {beyond[0]} asked for, the model has {count}", fix=f"choose layers from 0 to {count - 1}"
        )
    rows = asked.prefill + asked.decode + 1
    limit = engine.max_model_len or context_length(engine.model_copy(update={"model": model_path}))
    if limit is not None and rows > limit:
        raise ConfigurationError(
            f"{asked.prefill} + {asked.decode} rows and the token behind them do not fit into a context of {limit}",
            fix="lower the prefill and decode lengths, or raise the engine's max_model_len",
        )
    if asked.executor == "one_layer" and engine.fault is not None:
        raise ConfigurationError(
            "a fault is injected into an engine, and the executor one_layer runs none", fix="use the executor engine"
        )
    if asked.kinds is None:
        return
    taps = reference_taps(config, trust_remote_code=engine.trust_remote_code).available
    absent = [kind for kind in kinds if all(wire(kind, layer, taps) is None for layer in asked.layers)]
    if absent:
        there = [kind for kind in module_kinds(None) if any(wire(kind, layer, taps) for layer in asked.layers)]
        raise ConfigurationError(
            f"the model has no {module_kind(absent[0]).what} ({absent[0]}) in layer {_listed(asked.layers)}",
            fix=f"choose from {', '.join(there)}",
        )


def _listed(layers: list[int]) -> str:
    return ", ".join(map(str, layers))
