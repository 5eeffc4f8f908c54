"""Faults of serving: each is silent until requests share a batch, a prefix, or are prefilled in pieces."""

from typing import Any, Callable, Dict, List

import torch

from assay_inside.faults_attention import shift_positions
from assay_inside.faults_common import FaultNotApplicable, attention_layers, step_tokens
from assay_inside.faults_ends import change_logits
from assay_inside.kv import CacheLayer, cache_layers
from assay_inside.patching import Undo, wrap
from assay_inside.steps import NULL_BLOCK


def stale_prefix_hit(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    """While a request whose prefix was found in the cache runs, tokens of its cached blocks have other tokens' V.

    These are put back after each call: the cache, and whoever reads it once the fault is gone, is right.
    """
    step = step_tokens(runner)
    found = attention_layers(runner, fault["layer"])
    count = int(fault["strength"])
    caches: Dict[str, CacheLayer] = {}

    def cache_of(name: str) -> CacheLayer:
        if not caches:  # there is no cache yet when a fault is injected while the engine is loaded
            caches.update({layer.name: layer for layer in cache_layers(runner)})
        if caches[name].problem or caches[name].reader.fp8 is not None:
            raise FaultNotApplicable(caches[name].problem or "an FP8 cache could not be put back as it was")
        return caches[name]

    def hit_blocks(layer: CacheLayer) -> List[int]:
        blocks = set()
        for request in set(step.requests) & set(step.hits):
            table = runner.requests[request].block_ids[layer.group]
            blocks.update(table[: step.hits[request] // layer.block_size])
        return sorted(blocks - {NULL_BLOCK})

    def make(name: str) -> Callable[..., Any]:
        def with_right(right: Callable[..., Any]) -> Callable[..., Any]:
            def forward(layer: Any, query: Any, key: Any, value: Any, kv_cache: Any, *args: Any, **kwargs: Any) -> Any:
                cache = cache_of(name) if set(step.requests) & set(step.hits) else None
                blocks = hit_blocks(cache) if cache is not None else []
                if not blocks:
                    return right(layer, query, key, value, kv_cache, *args, **kwargs)
                keys, values = cache.reader.read(blocks)
                # K that moved along would change nothing: attention does not ask in which slot a token lies
                _write(layer, kv_cache, blocks, keys, values.roll(-count, 2))
                try:
                    return right(layer, query, key, value, kv_cache, *args, **kwargs)
                finally:
                    _write(layer, kv_cache, blocks, keys, values)

            return forward

        return with_right

    for name, module in found:
        if not hasattr(module.impl, "do_kv_cache_update"):
            raise FaultNotApplicable("%s writes its KV cache inside the attention kernel" % name)
        wrap(module.impl, "forward", make(name), undo)
    return [name for name, _ in found]


def _write(layer: Any, kv_cache: Any, blocks: List[int], keys: torch.Tensor, values: torch.Tensor) -> None:
    """Fill whole `blocks` through the backend's own write; keys, values (blocks, kv_heads, block_size, head_dim)."""
    size = keys.shape[2]
    slots = torch.cat([torch.arange(block * size, (block + 1) * size) for block in blocks]).to(kv_cache.device)
    rows = [part.transpose(1, 2).flatten(0, 1).contiguous().to(kv_cache.device) for part in (keys, values)]
    # the class's own method: another fault may sit in front of the instance's
    type(layer.impl).do_kv_cache_update(layer.impl, layer, rows[0], rows[1], kv_cache, slots)


def batch_dependent(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    """Each request's logits take a share of its neighbour's in the batch."""
    step = step_tokens(runner)

    def change(head: Any, hidden: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        requests = len(set(step.requests))
        if requests < 2 or len(logits) != requests:  # other calls of the head are for rows of a prompt
            return logits
        return torch.lerp(logits, logits.roll(1, 0), float(fault["strength"]))

    return change_logits(runner, undo, change)


def chunk_boundary(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    return shift_positions(runner, fault, undo, lambda step: step.later_chunks)


INJECTIONS = {
    "stale-prefix-hit": stale_prefix_hit,
    "batch-dependent": batch_dependent,
    "chunk-boundary": chunk_boundary,
}
