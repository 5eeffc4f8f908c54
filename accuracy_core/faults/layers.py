"""Finding the parts of a decoder in a Hugging Face model, by the names that most architectures share."""

from __future__ import annotations

from typing import Any

from torch import nn

from accuracy_core.errors import ConfigurationError

#: names of the feed-forward block in a decoder layer
MLP_NAMES = ("mlp", "feed_forward", "block_sparse_moe", "ffn")
ATTENTION_NAMES = ("self_attn", "attention", "attn")


def decoder_layer(model: nn.Module, layer: int) -> nn.Module:
    """Decoder layer `layer`. Raises ConfigurationError when the model has no such layer."""
    for name, module in model.named_modules():
        if name.rsplit(".", 1)[-1] in ("layers", "h", "blocks") and isinstance(module, nn.ModuleList):
            if layer < len(module):
                return module[layer]
            raise ConfigurationError(
                f"layer {layer} asked for, the model has {len(module)}", fix="choose a lower layer"
            )
    raise ConfigurationError(f"no decoder layers found in {type(model).__name__}")


def child(module: nn.Module, names: tuple[str, ...]) -> nn.Module:
    """The submodule with one of `names`. Raises ConfigurationError when there is none."""
    for name in names:
        found = getattr(module, name, None)
        if isinstance(found, nn.Module):
            return found
    raise ConfigurationError(f"{type(module).__name__} has none of {', '.join(names)}")


def positions_of(kwargs: dict[str, Any]) -> Any:
    """Position ids (batch, tokens) of a decoder layer's call, int64, or None when it was given none."""
    return kwargs.get("position_ids")
