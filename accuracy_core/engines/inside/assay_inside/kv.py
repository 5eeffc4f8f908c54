"""K and V of a request out of the paged cache, as they were when its blocks were last its own.

Blocks are read when the request is done. One that the engine gives to somebody else before (a sliding window that moved
on, a request that ended while others run) is copied at the start of the call that would overwrite it.
"""

import re
from typing import Any, Dict, List, Set, Tuple

import torch

from assay_inside.kv_layout import BlockReader, UnreadableCache
from assay_inside.steps import NULL_BLOCK, Steps, Watched
from assay_inside.taps import ranges


class CacheLayer:
    """An attention layer with a cache: its name and number in the model, its cache group, its reader or why it has
    none."""

    def __init__(self, name: str, number: int, group: int, module: Any, spec: Any) -> None:
        self.name, self.number, self.group = name, number, group
        self.block_size = int(getattr(spec, "block_size", 0))
        self.problem = ""
        try:
            self.reader = BlockReader(module, spec)
        except UnreadableCache as error:
            self.problem = str(error)


def cache_layers(runner: Any) -> List[CacheLayer]:
    """In order of their number. Raises UnreadableCache when this runner does not say where its caches are."""
    config = getattr(runner, "kv_cache_config", None)
    context = getattr(getattr(runner, "compilation_config", None), "static_forward_context", None)
    if config is None or context is None:
        raise UnreadableCache("this vLLM's model runner does not say where its KV cache is")
    parallel = getattr(getattr(runner, "vllm_config", None), "parallel_config", None)
    if getattr(parallel, "decode_context_parallel_size", 1) > 1:
        raise UnreadableCache("the KV cache is split over positions (decode context parallelism)")
    layers = []
    for group, entry in enumerate(config.kv_cache_groups):
        for name in entry.layer_names:
            number = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)
            if number is None or name not in context:
                continue
            specs = getattr(entry.kv_cache_spec, "kv_cache_specs", None) or {}
            spec = specs.get(name, entry.kv_cache_spec)
            layers.append(CacheLayer(name, int(number.group(1)), group, context[name], spec))
    return sorted(layers, key=lambda layer: layer.number)


class KvCapture:
    """Collects K and V of the watched requests in `wanted`."""

    def __init__(self, steps: Steps, wanted: Set[str]) -> None:
        self.layers = cache_layers(steps.runner)
        self.wanted = wanted
        steps.before_reuse.append(self._rescue)

    @property
    def block_size(self) -> int:
        return self.layers[0].block_size if self.layers else 0

    def _rescue(self, request: Watched, fresh: Set[int]) -> None:
        """Copy the request's blocks that are about to be somebody else's."""
        if request.request_id not in self.wanted:
            return
        for group, table in enumerate(request.tables):
            lost = [
                index for index, block in enumerate(table)
                if block in fresh and block != NULL_BLOCK and (group, index) not in request.saved
            ]  # fmt: skip
            if lost:
                copies = self._read(group, [table[index] for index in lost])
                for place, index in enumerate(lost):
                    request.saved[group, index] = {
                        number: (key[place].clone(), value[place].clone()) for number, (key, value) in copies.items()
                    }

    def _read(self, group: int, blocks: List[int]) -> Dict[int, Tuple[torch.Tensor, torch.Tensor]]:
        return {
            layer.number: layer.reader.read(blocks)
            for layer in self.layers
            if layer.group == group and not layer.problem
        }

    def take(self, request: Watched, positions: int) -> Tuple[Dict[str, torch.Tensor], Dict[str, str]]:
        """(tensors, missing): `LAYER.key` and `LAYER.value` (kv_heads, positions, head_dim), NaN at positions that are
        not there."""
        tensors: Dict[str, torch.Tensor] = {}
        missing: Dict[str, str] = {}
        if not self.layers:
            missing["kv"] = "no layer of this model has a KV cache"
        for layer in self.layers:
            names = ["%d.key" % layer.number, "%d.value" % layer.number]
            if not layer.problem and names[0] in tensors:
                layer.problem = "two caches have this number"
            if layer.problem:
                missing.update(dict.fromkeys(names, layer.problem))
                continue
            pair, seen = self._assemble(layer, request, positions)
            tensors[names[0]], tensors[names[1]] = pair
            if not bool(seen.all()):
                missing.update({name: "not in the cache: positions %s" % ranges(seen) for name in names})
        return tensors, missing

    def _assemble(
        self, layer: CacheLayer, request: Watched, positions: int
    ) -> Tuple[Tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
        size, reader = layer.block_size, layer.reader
        table = request.tables[layer.group] if layer.group < len(request.tables) else []
        table = table[: -(-positions // size)]
        live = [i for i, block in enumerate(table) if block != NULL_BLOCK and (layer.group, i) not in request.saved]
        key, value = reader.read([table[index] for index in live])
        blocks = {index: (key[place], value[place]) for place, index in enumerate(live)}
        for index in range(len(table)):
            if (layer.group, index) in request.saved:
                blocks[index] = request.saved[layer.group, index][layer.number]
        seen = torch.zeros(positions, dtype=torch.bool)
        keys = torch.full((reader.heads, positions, reader.head_dim), float("nan"), dtype=key.dtype)
        values = torch.full((reader.heads, positions, reader.value_dim), float("nan"), dtype=value.dtype)
        for index, (block_key, block_value) in blocks.items():
            start = index * size
            count = min(size, positions - start, request.computed - start)
            if count > 0:
                keys[:, start : start + count] = block_key[:, :count]
                values[:, start : start + count] = block_value[:, :count]
                seen[start : start + count] = True
        return (keys, values), seen
