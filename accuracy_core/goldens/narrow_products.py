"""Matrix products of a BF16 or FP16 reference on CPUs without instructions for them, about six times faster.

Such a product is defined by exact products of narrow values, summed in FP32 and rounded once. torch's own fallback
computes just that, slowly; an FP32 kernel on the same values, rounded at the end, is the same up to the order of the
summation (measured on a 135M model, one core without AVX-512: 16.5 s against 2.8 s for the same forward passes, and
both 1.7 % RMS away from FP32).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

#: part of a golden's key where a reference is computed in a narrow dtype
PRODUCTS = "float32 sum, rounded once"


def has_native_products(dtype: torch.dtype) -> bool:
    """Whether this CPU multiplies matrices of `dtype` in hardware. FP32 counts as native."""
    if dtype is torch.float32:
        return True
    try:
        check = "_is_mkldnn_bf16_supported" if dtype is torch.bfloat16 else "_is_mkldnn_fp16_supported"
        return bool(getattr(torch.ops.mkldnn, check)())
    except (AttributeError, RuntimeError):
        return False


def use_float32_kernels(model: nn.Module, dtype: torch.dtype) -> int:
    """Let every `nn.Linear` of `model` with weights in `dtype` use FP32 kernels; how many were changed.

    Inputs and outputs stay in `dtype`, and so do the weights' values; they are held as float32, so the model then takes
    as much memory as its FP32 twin, which was there before it. Nothing is changed where the CPU has native products.
    Layers that hold tied weights get a copy of their own: the embedding stays in `dtype`.
    """
    if has_native_products(dtype):
        return 0
    changed = 0
    for module in model.modules():
        # subclasses may compute something else; offloaded layers get their weights only when they run
        if type(module) is not nn.Linear or module.weight.dtype is not dtype or hasattr(module, "_hf_hook"):
            continue
        module.weight = nn.Parameter(module.weight.detach().to(torch.float32), requires_grad=False)
        if module.bias is not None:
            module.bias = nn.Parameter(module.bias.detach().to(torch.float32), requires_grad=False)
        module.forward = _Rounded(module, dtype)  # type: ignore[method-assign, assignment]
        changed += 1
    return changed


class _Rounded:
    """Forward of one layer. Not a closure: it holds no reference to the model, only to the layer."""

    def __init__(self, layer: nn.Linear, dtype: torch.dtype) -> None:
        self._layer, self._dtype = layer, dtype

    def __call__(self, inputs: torch.Tensor) -> Any:
        return F.linear(inputs.to(torch.float32), self._layer.weight, self._layer.bias).to(self._dtype)
