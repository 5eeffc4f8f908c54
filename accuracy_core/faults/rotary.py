"""Faults of the rotary embedding: another base, scaling left out, positions of decoded tokens off."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from accuracy_core.faults.conditions import has_rope_scaling, has_rotary
from accuracy_core.faults.fault import Fault, Removal, ResolvedFault
from accuracy_core.faults.layers import modules_of_class, restore, together
from accuracy_core.schemas import Phase

_FREQUENCIES = "inv_freq"


def frequencies(module: nn.Module) -> list[str]:
    """Names of the buffers with inverse frequencies, one per layer type where a model has several."""
    names = [name for name, _ in module.named_buffers(recurse=False)]
    return [name for name in names if name.endswith(_FREQUENCIES) and "original" not in name]


def _change_frequencies(model: nn.Module, change: Any) -> Removal:
    """Put `change(module, buffer's name, float32 (rotary_dim / 2,))` in place of every set of inverse frequencies."""

    def in_one(module: nn.Module, name: str) -> Removal:
        buffer = getattr(module, name)
        before = buffer.clone()
        buffer.copy_(change(module, name, before))
        return lambda: restore(buffer, before)

    rotary = modules_of_class(model, "RotaryEmbedding")
    return together(in_one(module, name) for module in rotary for name in frequencies(module))


def inject_theta(model: nn.Module, fault: ResolvedFault) -> Removal:
    """Frequency i of n is base**(-i/n): a base that is f times as large multiplies it by f**(-i/n)."""

    def scaled(module: nn.Module, name: str, values: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(len(values), dtype=torch.float64) / len(values)
        return (values.double() * fault.strength**-steps).to(values.dtype)

    return _change_frequencies(model, scaled)


def inject_no_scaling(model: nn.Module, fault: ResolvedFault) -> Removal:
    """Frequencies and amplitude as without scaling."""
    rotary = modules_of_class(model, "RotaryEmbedding")

    def plain(module: Any, name: str, values: torch.Tensor) -> torch.Tensor:
        settings = module.config.rope_parameters
        settings = settings.get(name.removesuffix(f"_{_FREQUENCIES}"), settings)
        steps = torch.arange(len(values), dtype=torch.float64) / len(values)
        return (float(settings["rope_theta"]) ** -steps).to(values.dtype)

    def amplitude(module: nn.Module, name: str) -> Removal:
        before = getattr(module, name)
        setattr(module, name, 1.0)
        return lambda: setattr(module, name, before)

    amplitudes = [
        amplitude(module, name) for module in rotary for name in vars(module) if name.endswith("attention_scaling")
    ]
    return together([_change_frequencies(model, plain), *amplitudes])


def inject_decode_offset(model: nn.Module, fault: ResolvedFault) -> Removal:
    """Tokens that come one at a time after position 0 get a position that is too high.

    Of all positions together an offset would change nothing: rotary attention sees differences only.
    """

    def moved(positions: torch.Tensor) -> torch.Tensor:
        if positions.shape[-1] > 1 or int(positions.min()) == 0:
            return positions
        return positions + int(fault.strength)

    def shift(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if "position_ids" in kwargs:
            return args, {**kwargs, "position_ids": moved(kwargs["position_ids"])}
        return (args[0], moved(args[1]), *args[2:]), kwargs

    rotary = modules_of_class(model, "RotaryEmbedding")
    return together(module.register_forward_pre_hook(shift, with_kwargs=True).remove for module in rotary)


_ALSO = ("model.layers.0.self_attn.key", "model.layers.0.self_attn.attn")
ROPE_THETA = Fault(
    name="rope-theta",
    description="the base of the rotary embedding is another",
    default_layer=None,
    default_strength=1.25,
    unit="factor",
    expected_phase=Phase.BOTH,
    expected_module="model.layers.0.self_attn.query",
    also=_ALSO,
    level="tensors",
    inject_hf=inject_theta,
    obstacle=has_rotary,
    takes_layer=False,
)
ROPE_SCALING_DROPPED = Fault(
    name="rope-scaling-dropped",
    description="the scaling of the rotary embedding (llama3, yarn, linear) is left out",
    default_layer=None,
    default_strength=1,
    unit="on or off",
    expected_phase=Phase.BOTH,
    expected_module="model.layers.0.self_attn.query",
    also=_ALSO,
    level="tensors",
    inject_hf=inject_no_scaling,
    obstacle=has_rope_scaling,
    takes_layer=False,
)
POSITION_OFFSET = Fault(
    name="position-offset",
    description="decoded tokens are rotated as if they stood later in the text; prefill is right",
    default_layer=None,
    default_strength=1,
    unit="positions",
    expected_phase=Phase.DECODE,
    expected_module="model.layers.0.self_attn.query",
    also=_ALSO,
    level="tensors",
    inject_hf=inject_decode_offset,
    obstacle=has_rotary,
    takes_layer=False,
)
