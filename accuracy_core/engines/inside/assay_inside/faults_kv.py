"""Faults of the paged KV cache: what is written where."""

from typing import Any, Callable, Dict, List, Tuple

import torch

from assay_inside.faults_common import FaultNotApplicable, StepTokens, attention_layers, block_size, step_tokens
from assay_inside.patching import Undo, wrap

#: `(step, key, value, slots, layer's name)` -> what is written instead; key and value (tokens, kv_heads, head_dim)
Rule = Callable[[StepTokens, torch.Tensor, torch.Tensor, torch.Tensor, str], Tuple[torch.Tensor, ...]]


def _change_writes(runner: Any, fault: Dict[str, Any], undo: Undo, rule: Rule) -> List[str]:
    step = step_tokens(runner)
    found = attention_layers(runner, fault["layer"])

    def make(name: str) -> Callable[..., Any]:
        def with_right(right: Callable[..., Any]) -> Callable[..., Any]:
            def write(layer: Any, key: Any, value: Any, kv_cache: Any, slot_mapping: Any, *args: Any) -> Any:
                if len(step.positions):
                    key, value, slot_mapping = rule(step, key, value, slot_mapping, name)
                return right(layer, key, value, kv_cache, slot_mapping, *args)

            return write

        return with_right

    for name, module in found:
        if not hasattr(module.impl, "do_kv_cache_update"):
            raise FaultNotApplicable("%s writes its KV cache inside the attention kernel" % name)
        wrap(module.impl, "do_kv_cache_update", make(name), undo)
    return [name for name, _ in found]


def kv_slot(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    shift, first_position = int(fault["strength"]), fault["position"]

    def rule(step: StepTokens, key: Any, value: Any, slots: Any, name: str) -> Tuple[torch.Tensor, ...]:
        wrong = step.padded(step.decoded & (step.positions >= first_position), len(slots), slots.device)
        size = block_size(runner, name)
        moved = slots - slots % size + (slots % size + shift) % size
        return key, value, torch.where(wrong, moved, slots)

    return _change_writes(runner, fault, undo, rule)


def kv_block_stride(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    """Token p goes where the token p - (p // block) * missing of its sequence went: blocks overlap."""
    missing = int(fault["strength"])
    seen: Dict[Tuple[str, str], Dict[int, int]] = {}

    def rule(step: StepTokens, key: Any, value: Any, slots: Any, name: str) -> Tuple[torch.Tensor, ...]:
        size = block_size(runner, name)
        moved = slots.clone()
        for index, position in enumerate(step.positions.tolist()):
            request = step.requests[index]
            if position == 0:  # a new sequence; one that is recomputed starts again, too
                seen[name, request] = {}
            where = seen.setdefault((name, request), {})
            where[position] = int(slots[index])
            moved[index] = where.get(position - position // size * missing, where[position])
        for gone in [item for item in seen if item[0] == name and item[1] not in runner.requests]:
            del seen[gone]
        return key, value, moved

    return _change_writes(runner, fault, undo, rule)


def stale_prefix_cache(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    """The first tokens' K and V are those of their successors, which must run in the same step: else they stay."""
    count = int(fault["strength"])

    def rule(step: StepTokens, key: Any, value: Any, slots: Any, name: str) -> Tuple[torch.Tensor, ...]:
        source = list(range(len(key)))
        for index in range(len(step.positions) - 1):
            follows = step.requests[index] == step.requests[index + 1]
            if follows and int(step.positions[index]) < count:
                source[index] = index + 1
        return key[source], value[source], slots

    return _change_writes(runner, fault, undo, rule)


def kv_scale(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    def rule(step: StepTokens, key: Any, value: Any, slots: Any, name: str) -> Tuple[torch.Tensor, ...]:
        return key * fault["strength"], value * fault["strength"], slots

    return _change_writes(runner, fault, undo, rule)


INJECTIONS = {
    "kv-slot": kv_slot,
    "kv-block-stride": kv_block_stride,
    "stale-prefix-cache": stale_prefix_cache,
    "kv-scale": kv_scale,
}
