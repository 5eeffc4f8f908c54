"""Faults of RMSNorm: a wrong epsilon, sums in the narrow dtype, outputs truncated instead of rounded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from accuracy_core.faults.fault import Fault, Removal, ResolvedFault
from accuracy_core.faults.layers import decoder_layer, modules_of_class, replace_forward, together
from accuracy_core.schemas import Phase

_EPSILON = ("variance_epsilon", "eps")
_BF16_MANTISSA = 7


def norms_of(model: nn.Module, fault: ResolvedFault) -> list[nn.Module]:
    """RMSNorms of the whole model, or of layer `fault.layer`."""
    return modules_of_class(model if fault.layer is None else decoder_layer(model, fault.layer), "RMSNorm")


def epsilon_of(norm: nn.Module) -> str:
    """Name of the attribute that holds a norm's epsilon."""
    return next(name for name in _EPSILON if hasattr(norm, name))


def inject_eps(model: nn.Module, fault: ResolvedFault) -> Removal:
    def set_in(norm: nn.Module) -> Removal:
        name = epsilon_of(norm)
        before = getattr(norm, name)
        setattr(norm, name, fault.strength)
        return lambda: setattr(norm, name, before)

    return together(set_in(norm) for norm in norms_of(model, fault))


def narrow_sum(squares: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Sum over the last dimension with a running sum in `dtype`, as a kernel without a wide accumulator has it."""
    narrow = squares.to(dtype)
    total = torch.zeros(narrow.shape[:-1], dtype=dtype, device=narrow.device)
    for column in narrow.unbind(-1):
        total = total + column
    return total.unsqueeze(-1)


def inject_no_upcast(model: nn.Module, fault: ResolvedFault) -> Removal:
    def make(norm: nn.Module, right: Callable[..., Any]) -> Callable[..., Any]:
        def forward(x: torch.Tensor) -> torch.Tensor:
            narrow = x.to(torch.bfloat16)
            mean = narrow_sum(narrow * narrow, torch.bfloat16) / x.shape[-1]
            wrong = (mean + getattr(norm, epsilon_of(norm))).rsqrt().float()
            wide = x.float()
            exact = (wide.pow(2).mean(-1, keepdim=True) + getattr(norm, epsilon_of(norm))).rsqrt()
            # the class's own forward is linear in its row's scale, whatever it does with its weight
            return (right(x).float() * (wrong / exact)).to(x.dtype)

        return forward

    return together(replace_forward(norm, partial(make, norm)) for norm in norms_of(model, fault))


def truncate(x: torch.Tensor, mantissa_bits: int) -> torch.Tensor:
    """`x` (float32) with all but the first `mantissa_bits` of its 23 mantissa bits cleared: rounded toward zero."""
    mask = -1 << (23 - mantissa_bits)
    return (x.contiguous().view(torch.int32) & mask).view(torch.float32)


def inject_truncation(model: nn.Module, fault: ResolvedFault) -> Removal:
    def make(norm: nn.Module, right: Callable[..., Any]) -> Callable[..., Any]:
        def forward(x: torch.Tensor) -> torch.Tensor:
            stored = norm.weight.data
            norm.weight.data = stored.float()  # so that nothing is rounded before it is cut off
            try:
                return truncate(right(x.float()), int(fault.strength)).to(x.dtype)
            finally:
                norm.weight.data = stored

        return forward

    return together(replace_forward(norm, partial(make, norm)) for norm in norms_of(model, fault))


_FIRST_NORM = "model.layers.{layer}.input_layernorm"
_WHOLE_MODEL: dict[str, Any] = {
    "default_layer": None, "expected_phase": Phase.BOTH, "expected_module": _FIRST_NORM, "level": "tensors",
}  # fmt: skip

NORM_EPS = Fault(
    name="norm-eps",
    description="every RMSNorm uses another epsilon",
    default_strength=1e-2,
    unit="epsilon",
    inject_hf=inject_eps,
    **_WHOLE_MODEL,
)
NORM_NO_UPCAST = Fault(
    name="norm-no-upcast",
    description="every RMSNorm sums its squares in bfloat16 instead of float32",
    default_strength=1,
    unit="on or off",
    inject_hf=inject_no_upcast,
    **_WHOLE_MODEL,
)
TRUNCATION = Fault(
    name="truncation",
    description="the output of every RMSNorm is cut off after its mantissa bits instead of rounded to nearest",
    default_strength=_BF16_MANTISSA,
    unit="mantissa bits",
    inject_hf=inject_truncation,
    **_WHOLE_MODEL,
)
