"""Finding the parts of a decoder in a Hugging Face model, by the names that most architectures share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from accuracy_core.errors import ConfigurationError

#: names of the feed-forward block in a decoder layer
MLP_NAMES = ("mlp", "feed_forward", "block_sparse_moe", "ffn")
ATTENTION_NAMES = ("self_attn", "attention", "attn")
ROUTER_NAMES = ("gate", "router")
OUTPUT_NAMES = ("o_proj", "out_proj", "dense")


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """The decoder layers. Raises ConfigurationError when there are none."""
    for name, module in model.named_modules():
        if name.rsplit(".", 1)[-1] in ("layers", "h", "blocks") and isinstance(module, nn.ModuleList):
            return module
    raise ConfigurationError(f"no decoder layers found in {type(model).__name__}")


def decoder_layer(model: nn.Module, layer: int) -> nn.Module:
    """Decoder layer `layer`. Raises ConfigurationError when the model has no such layer."""
    layers = decoder_layers(model)
    if layer >= len(layers):
        raise ConfigurationError(f"layer {layer} asked for, the model has {len(layers)}", fix="choose a lower layer")
    return layers[layer]


def child(module: nn.Module, names: tuple[str, ...]) -> nn.Module:
    """The submodule with one of `names`. Raises ConfigurationError when there is none."""
    for name in names:
        found = getattr(module, name, None)
        if isinstance(found, nn.Module):
            return found
    raise ConfigurationError(f"{type(module).__name__} has none of {', '.join(names)}")


def attention_of(model: nn.Module, layer: int) -> nn.Module:
    return child(decoder_layer(model, layer), ATTENTION_NAMES)


def modules_of_class(model: nn.Module, ending: str) -> list[nn.Module]:
    """Modules whose class name ends with `ending`. Raises ConfigurationError when there is none."""
    found = [module for module in model.modules() if type(module).__name__.endswith(ending)]
    if not found:
        raise ConfigurationError(f"{type(model).__name__} has no {ending}")
    return found


def positions_of(kwargs: dict[str, Any]) -> Any:
    """Position ids (batch, tokens) of a decoder layer's call, int64, or None when it was given none."""
    return kwargs.get("position_ids")


def first_of(output: Any) -> Any:
    """The tensor that a module returns, also where it comes in a tuple."""
    return output[0] if isinstance(output, tuple) else output


def with_first(output: Any, value: Any) -> Any:
    """`output` with its tensor replaced by `value`."""
    return (value, *output[1:]) if isinstance(output, tuple) else value


def replace_forward(module: nn.Module, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[], None]:
    """Let `module` compute `make(its forward)`: inside its hooks, so that those see the right input and the new output.

    Returns what undoes it.
    """
    before = module.__dict__.get("forward")
    module.forward = make(module.forward)

    def remove() -> None:
        if before is None:
            del module.forward
        else:
            module.forward = before

    return remove


def restore(tensor: Any, before: Any) -> None:
    """Put the values `before` back into `tensor`."""
    tensor.copy_(before)


def together(removals: Iterable[Callable[[], None]]) -> Callable[[], None]:
    """One removal for many, undone in reverse order."""
    all_of_them = list(removals)

    def remove() -> None:
        for one in reversed(all_of_them):
            one()

    return remove
