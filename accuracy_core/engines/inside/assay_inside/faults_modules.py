"""Faults of feed-forward blocks, norms and linear layers in a vLLM model."""

from typing import Any, Callable, Dict, List, Tuple

import torch

from assay_inside.faults_common import FaultNotApplicable, first_of, modules, step_tokens
from assay_inside.patching import Undo, set_attribute, wrap

#: the feed-forward block; its last linear, when it has one, so that finer taps see the fault too
_MLP = r"\.layers\.%d\.(?:mlp|feed_forward|block_sparse_moe)(?:\.down_proj)?$"


def _change_mlp(
    runner: Any, fault: Dict[str, Any], undo: Undo, change: Callable[[torch.Tensor], torch.Tensor]
) -> List[str]:
    found = modules(runner, _MLP % fault["layer"])
    last = [item for item in found if item[0].endswith("down_proj")] or found
    first_position = fault["position"]
    step = step_tokens(runner) if first_position else None

    def apply(module: Any, args: Any, output: Any) -> None:
        value = first_of(output)
        changed = change(value)
        if step is not None:
            affected = step.padded(step.positions >= first_position, len(value), value.device)
            changed = torch.where(affected.unsqueeze(-1), changed, value)
        value.copy_(changed)  # in place: the output may be a tuple, and may be aliased

    for _, module in last:
        undo.append(module.register_forward_hook(apply).remove)
    return [name for name, _ in last]


def mlp_scale(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    return _change_mlp(runner, fault, undo, lambda value: value * fault["strength"])


def nan_module(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    def spoil(value: torch.Tensor) -> torch.Tensor:
        spoiled = value.clone()
        spoiled[..., : int(fault["strength"])] = float("nan")
        return spoiled

    def clear_caches() -> None:
        """NaN in unused slots would spoil later requests: a masked slot's weight is 0, and 0 * NaN is NaN."""
        for cache in getattr(runner, "kv_caches", []):
            cache.zero_()

    undo.append(clear_caches)
    return _change_mlp(runner, fault, undo, spoil)


def _norms(runner: Any, fault: Dict[str, Any]) -> List[Tuple[str, Any]]:
    where = "" if fault["layer"] is None else r"\.layers\.%d\." % fault["layer"]
    found = [item for item in modules(runner, where) if type(item[1]).__name__.endswith("RMSNorm")]
    if not found:
        raise FaultNotApplicable("the model has no RMSNorm")
    return found


def norm_eps(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    found = _norms(runner, fault)
    for _, norm in found:
        set_attribute(norm, "variance_epsilon", fault["strength"], undo)
    return [name for name, _ in found]


def _wrong_norms(runner: Any, fault: Dict[str, Any], undo: Undo, wrong: Callable[..., torch.Tensor]) -> List[str]:
    """`wrong(norm, source, right output)`: source float32 is what is normalised, with the residual added."""
    found = _norms(runner, fault)

    def make(norm: Any) -> Callable[..., Any]:
        def with_right(right: Callable[..., Any]) -> Callable[..., Any]:
            def forward(x: torch.Tensor, residual: Any = None) -> Any:
                source = x.float() if residual is None else x.float() + residual.float()
                output = right(x, residual) if residual is not None else right(x)
                value = first_of(output)
                value.copy_(wrong(norm, source, value))
                return output

            return forward

        return with_right

    for _, norm in found:
        wrap(norm, "forward", make(norm), undo)
    return [name for name, _ in found]


def narrow_sum(squares: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Sum over the last dimension with a running sum in `dtype`, as a kernel without a wide accumulator has it."""
    narrow = squares.to(dtype)
    total = torch.zeros(narrow.shape[:-1], dtype=dtype, device=narrow.device)
    for column in narrow.unbind(-1):
        total = total + column
    return total.unsqueeze(-1)


def norm_no_upcast(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    def wrong(norm: Any, source: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        narrow = source.to(torch.bfloat16)
        mean = narrow_sum(narrow * narrow, torch.bfloat16) / source.shape[-1]
        exact = source.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon
        return value.float() * ((mean + norm.variance_epsilon).rsqrt().float() / exact.rsqrt())

    return _wrong_norms(runner, fault, undo, wrong)


def truncate(x: torch.Tensor, mantissa_bits: int) -> torch.Tensor:
    """`x` (float32) with all but the first `mantissa_bits` of its 23 mantissa bits cleared: rounded toward zero."""
    mask = -1 << (23 - mantissa_bits)
    return (x.contiguous().view(torch.int32) & mask).view(torch.float32)


def truncation(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    def wrong(norm: Any, source: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        weight = norm.weight.float() + (1.0 if "Gemma" in type(norm).__name__ else 0.0)
        exact = source * (source.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt() * weight
        return truncate(exact, int(fault["strength"]))

    return _wrong_norms(runner, fault, undo, wrong)


def qk_norm_skipped(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    found = modules(runner, r"\.layers\.%d\..*\.[qk]_norm$" % fault["layer"])
    for _, norm in found:
        set_attribute(norm, "forward", lambda x: x, undo)
    return [name for name, _ in found]


def qkv_bias_dropped(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    """The bias is taken off again behind the projection: the packed product adds it where it cannot be reached."""
    found = modules(runner, r"\.layers\.%d\..*attn\.(?:qkv_proj|qkv)$" % fault["layer"])

    def without(module: Any, args: Any, output: Any) -> None:
        first_of(output).sub_(module.bias.to(first_of(output).dtype))

    for name, module in found:
        if getattr(module, "bias", None) is None:
            raise FaultNotApplicable("%s has no bias" % name)
        undo.append(module.register_forward_hook(without).remove)
    return [name for name, _ in found]


def gate_up_swapped(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    found = modules(runner, r"\.layers\.%d\.(?:mlp|feed_forward)\.gate_up_proj$" % fault["layer"])

    def swap(module: Any, args: Any, output: Any) -> None:
        value = first_of(output)
        value.copy_(torch.cat(value.chunk(2, dim=-1)[::-1], dim=-1))

    for _, module in found:
        undo.append(module.register_forward_hook(swap).remove)
    return [name for name, _ in found]


def all_reduce_missing(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    found = modules(runner, r"\.layers\.%d\..*attn\.(?:o_proj|out_proj|dense)$" % fault["layer"])
    ranks = int(fault["strength"])

    def make(right: Callable[..., Any]) -> Callable[..., Any]:
        def forward(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            partial = x.clone()
            partial[..., x.shape[-1] - x.shape[-1] // ranks :] = 0
            return right(partial, *args, **kwargs)

        return forward

    for _, module in found:
        wrap(module, "forward", make, undo)
    return [name for name, _ in found]


INJECTIONS = {
    "mlp-scale": mlp_scale,
    "nan-module": nan_module,
    "norm-eps": norm_eps,
    "norm-no-upcast": norm_no_upcast,
    "truncation": truncation,
    "qk-norm-skipped": qk_norm_skipped,
    "qkv-bias-dropped": qkv_bias_dropped,
    "gate-up-swapped": gate_up_swapped,
    "all-reduce-missing": all_reduce_missing,
}
