"""Seeded random models of any architecture and shape whose numerics are sound: comparisons of them mean something."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from pydantic import Field
from torch import nn

from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas.base import Part

#: RMS of the residual stream may change by this much over the depth: of a random model, which its scale keeps level,
#: and of a trained one, whose stream legitimately grows a hundredfold
MOST_GROWTH = 10.0
MOST_TRAINED_GROWTH = 1e3
#: standard deviation of the logits
LOGIT_RANGE = (0.05, 20.0)


class Soundness(Part):
    """`rms`: of the residual stream after each layer; `logit_std` over all logits."""

    rms: list[float]
    logit_std: float
    growth: float = Field(description="largest RMS over smallest")


def llama_shape(width: float = 1.0, layers: int = 16, vocab_size: int | None = None) -> Any:
    """Configuration of Llama-3.2-1B's shape: d 2048, ffn 8192, 32 query and 8 KV heads of 64, tied 128,256 vocabulary.

    `width` scales the number of heads, and with it hidden and feed-forward sizes; heads stay 64 wide.
    """
    from transformers import LlamaConfig

    kv_heads = max(1, round(8 * width))
    return LlamaConfig(
        hidden_size=kv_heads * 4 * 64,
        intermediate_size=kv_heads * 1024,
        num_hidden_layers=layers,
        num_attention_heads=kv_heads * 4,
        num_key_value_heads=kv_heads,
        head_dim=64,
        vocab_size=vocab_size or 128_256,
        tie_word_embeddings=True,
        max_position_embeddings=131_072,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
    )


def seeded_model(config: Any, seed: int = 0) -> Any:
    """A causal model in float32: matrices of standard deviation 1/sqrt(fan_in), embeddings of unit RMS, norms of 1.

    A tied output matrix is divided by sqrt(hidden) where it is used, which an untied one is by its own scale: logits
    come out near unit variance. (Unscaled normal weights diverge over depth, and a comparison is of noise with noise.)
    """
    from transformers import AutoModelForCausalLM

    generator = torch.Generator().manual_seed(seed)
    with torch.device("cpu"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter is embedding.weight:
                parameter.normal_(0, 1, generator=generator)
            elif parameter.ndim >= 2:
                parameter.normal_(0, 1 / math.sqrt(parameter.shape[-1]), generator=generator)
            elif name.endswith("bias"):
                parameter.zero_()
            else:
                parameter.fill_(0.0 if "gemma" in config.model_type else 1.0)
    if head is not None and head.weight is embedding.weight:
        scale = 1 / math.sqrt(embedding.weight.shape[-1])
        head.register_forward_pre_hook(lambda _module, args: (args[0] * scale, *args[1:]))
    return model.eval()


@torch.inference_mode()
def soundness(model: Any, token_ids: Sequence[Sequence[int]], *, most_growth: float = MOST_GROWTH) -> Soundness:
    """RMS per layer and spread of the logits.

    Raises ConfigurationError, naming the layer, for activations that are not finite, or that are more than
    `most_growth` times larger or smaller than after the first layer.
    """
    rms: list[list[float]] = []
    layers = decoder_layers(model)
    handles = [
        layer.register_forward_hook(lambda _m, _a, out, i=i: rms[-1].append(_rms(out)))
        for i, layer in enumerate(layers)
    ]
    logits = []
    try:
        for ids in token_ids:
            rms.append([])
            logits.append(model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0].float())
    finally:
        for handle in handles:
            handle.remove()
    mean = [sum(column) / len(column) for column in zip(*rms, strict=True)]
    std = float(torch.cat(logits).std())
    for number, value in enumerate(mean):
        if not math.isfinite(value):
            raise ConfigurationError(f"activations are not finite from layer {number} on", fix=_FIX)
        if value > most_growth * mean[0] or value * most_growth < mean[0]:
            raise ConfigurationError(
                f"activations diverge: the residual stream's RMS goes from {mean[0]:.3g} to {value:.3g} by layer "
                f"{number}",
                fix=_FIX,
            )
    if not (math.isfinite(std) and LOGIT_RANGE[0] <= std <= LOGIT_RANGE[1]):
        raise ConfigurationError(f"logits have a standard deviation of {std:.3g}, wanted about 1", fix=_FIX)
    return Soundness(rms=mean, logit_std=std, growth=max(mean) / min(mean))


_FIX = (
    "check the checkpoint's weights; in a random model, scale matrices by 1/sqrt(fan_in) and embeddings to unit RMS: a "
    "comparison of such a model compares noise"
)


def decoder_layers(model: Any) -> nn.ModuleList:
    """The layers of a causal model. Raises ConfigurationError when they are not found."""
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and name.rsplit(".", 1)[-1] in ("layers", "h", "blocks"):
            return module
    raise ConfigurationError(f"no decoder layers found in {type(model).__name__}")


def _rms(output: Any) -> float:
    states = output[0] if isinstance(output, tuple) else output
    return float(states.float().square().mean().sqrt())
