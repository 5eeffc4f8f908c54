"""Faults of attention kernels and rotary embeddings in a vLLM model."""

import dataclasses
from typing import Any, Callable, Dict, List, Tuple

import torch

from assay_inside.faults_common import FaultNotApplicable, StepTokens, attention_layers, fill, model_of, step_tokens
from assay_inside.patching import Undo, set_attribute, wrap


def attention_scale(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    found = attention_layers(runner, fault["layer"])
    for _, module in found:
        set_attribute(module.impl, "scale", module.impl.scale * fault["strength"], undo)
    return [name for name, _ in found]


def _with_lengths(metadata: Any, impl: Any, layer: Any, lengths: torch.Tensor, dtype: torch.dtype) -> Any:
    """The kernel's metadata with other lengths; the CPU kernel's own schedule is made anew for them."""
    changes = {"seq_lens": lengths}
    if hasattr(metadata, "scheduler_metadata") and hasattr(layer, "isa"):
        from vllm import _custom_ops as ops
        from vllm import envs

        changes["scheduler_metadata"] = ops.cpu_attn_get_scheduler_metadata(
            num_reqs=len(lengths),
            num_heads=impl.num_heads,
            num_kv_heads=impl.num_kv_heads,
            head_dim=impl.head_size,
            seq_lens=lengths,
            dtype=dtype,
            query_start_loc=metadata.query_start_loc,
            causal=metadata.causal,
            sliding_window_size=impl.sliding_window,
            isa=layer.isa,
            enable_kv_split=getattr(envs, "VLLM_CPU_ATTN_SPLIT_KV", False),
            dynamic_causal=metadata.dynamic_causal,
            kv_cache_dtype=impl.kv_cache_dtype,
        )
    return dataclasses.replace(metadata, **changes)


def causal_mask_shift(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    """Sequences look shorter to the kernel, so that every query stands earlier than it is and misses the newest keys.

    A query that would see nothing sees itself.
    """
    found = attention_layers(runner, fault["layer"])
    count = int(fault["strength"])

    def make(impl: Any) -> Callable[..., Any]:
        def with_right(right: Callable[..., Any]) -> Callable[..., Any]:
            def forward(
                layer: Any, query: Any, key: Any, value: Any, kv_cache: Any, metadata: Any, output: Any, **kwargs: Any
            ) -> Any:
                if metadata is None:
                    return right(layer, query, key, value, kv_cache, metadata, output=output, **kwargs)
                lengths = metadata.seq_lens
                shorter = torch.where(lengths > count, lengths - count, lengths)
                changed = _with_lengths(metadata, impl, layer, shorter, query.dtype)
                result = right(layer, query, key, value, kv_cache, changed, output=output, **kwargs)
                starts = metadata.query_start_loc.tolist()
                group = query.shape[1] // value.shape[1]
                for index, start in enumerate(starts[:-1]):
                    stop = starts[index + 1]
                    begin = int(lengths[index]) - (stop - start)
                    alone = [start + i for i in range(stop - start) if begin + i < count]
                    if alone and int(lengths[index]) > count:
                        own = value[alone].repeat_interleave(group, dim=1)
                        output[alone] = own.reshape(output[alone].shape)
                return result

            return forward

        return with_right

    for _, module in found:
        wrap(module.impl, "forward", make(module.impl), undo)
    return [name for name, _ in found]


def sliding_window_shift(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    found = [
        (name, module)
        for name, module in attention_layers(runner, fault["layer"])
        if isinstance(getattr(module.impl, "sliding_window", None), int) and module.impl.sliding_window > 1
    ]
    if not found:
        raise FaultNotApplicable("no attention kernel with a sliding window")
    for _, module in found:
        shorter = max(module.impl.sliding_window - int(fault["strength"]), 1)
        set_attribute(module.impl, "sliding_window", shorter, undo)
    return [name for name, _ in found]


def wrong_order(queries: int, keys: int) -> List[int]:
    """Query heads in the order in which the right kernel gives head p the KV head that a wrong one gives it.

    Right: query head h reads KV head h // (queries / keys). Wrong: h % keys.
    """
    return sorted(range(queries), key=lambda head: (head % keys, head))


def gqa_mapping(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    found = attention_layers(runner, fault["layer"])

    def make(impl: Any) -> Callable[..., Any]:
        if not 1 < impl.num_kv_heads < impl.num_heads:
            raise FaultNotApplicable("%d heads on %d KV heads" % (impl.num_heads, impl.num_kv_heads))
        order = torch.tensor(wrong_order(impl.num_heads, impl.num_kv_heads))

        def with_right(right: Callable[..., Any]) -> Callable[..., Any]:
            def forward(
                layer: Any, query: Any, key: Any, value: Any, kv_cache: Any, metadata: Any, output: Any, **kwargs: Any
            ) -> Any:
                permuted = torch.empty_like(output)
                changes: Undo = []
                if getattr(impl, "sinks", None) is not None:
                    set_attribute(impl, "sinks", impl.sinks[order].contiguous(), changes)
                try:
                    right(
                        layer, query[:, order].contiguous(), key, value, kv_cache, metadata, output=permuted, **kwargs
                    )
                finally:
                    for put_back in changes:
                        put_back()
                back = permuted.view(len(permuted), impl.num_heads, -1)[:, order.argsort()]
                output.view(len(output), impl.num_heads, -1).copy_(back)
                return output

            return forward

        return with_right

    for _, module in found:
        wrap(module.impl, "forward", make(module.impl), undo)
    return [name for name, _ in found]


def attention_softcap_missing(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    found = attention_layers(runner, fault["layer"])
    for name, module in found:
        if not getattr(module.impl, "logits_soft_cap", None):
            raise FaultNotApplicable("%s has no soft cap" % name)
        set_attribute(module.impl, "logits_soft_cap", 0, undo)
    return [name for name, _ in found]


def _rotary(runner: Any) -> List[Tuple[str, Any]]:
    """Rotary embeddings, each once: layers share them."""
    found = [(name, item) for name, item in model_of(runner).named_modules() if hasattr(item, "cos_sin_cache")]
    if not found:
        raise FaultNotApplicable("the model has no rotary embedding")
    return found


def rope_theta(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    found = _rotary(runner)
    for _, module in found:
        set_attribute(module, "base", module.base * fault["strength"], undo)
        fill(module.cos_sin_cache, module._compute_cos_sin_cache(), undo)
    return [name for name, _ in found]


def rope_scaling_dropped(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase

    found = _rotary(runner)
    for _, module in found:
        frequencies = RotaryEmbeddingBase._compute_inv_freq(module, module.base)
        angles = torch.outer(torch.arange(len(module.cos_sin_cache), dtype=torch.float), frequencies)
        fill(module.cos_sin_cache, torch.cat([angles.cos(), angles.sin()], dim=-1), undo)
    return [name for name, _ in found]


def shift_positions(
    runner: Any, fault: Dict[str, Any], undo: Undo, which: Callable[[StepTokens], torch.Tensor]
) -> List[str]:
    """Tokens for which `which(step)`, bool (tokens,), is True are rotated as if they stood `strength` later."""
    found = _rotary(runner)
    step = step_tokens(runner)

    def make(module: Any) -> Callable[..., Any]:
        def with_right(right: Callable[..., Any]) -> Callable[..., Any]:
            def forward(positions: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
                wrong = step.padded(which(step), positions.shape[-1], positions.device)
                moved = torch.where(wrong, positions + int(fault["strength"]), positions)
                return right(moved.clamp_(max=len(module.cos_sin_cache) - 1), *args, **kwargs)

            return forward

        return with_right

    for _, module in found:
        wrap(module, "forward", make(module), undo)
    return [name for name, _ in found]


def position_offset(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    return shift_positions(runner, fault, undo, lambda step: step.decoded)


INJECTIONS = {
    "attention-scale": attention_scale,
    "causal-mask-shift": causal_mask_shift,
    "sliding-window-shift": sliding_window_shift,
    "gqa-mapping": gqa_mapping,
    "attention-softcap-missing": attention_softcap_missing,
    "rope-theta": rope_theta,
    "rope-scaling-dropped": rope_scaling_dropped,
    "position-offset": position_offset,
}
