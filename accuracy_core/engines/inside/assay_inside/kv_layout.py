"""Where K and V of a token lie in a block of vLLM's KV cache.

The CPU backend packs blocks for its instruction set (K transposed, or interleaved for AMX) behind a shape that does not
say so. The layout is therefore learned: coded numbers go through the backend's own write into a scratch cache. Other
backends keep what the shape says.
"""

import copy
from typing import Any, Dict, Optional, Tuple

import torch

#: digits 1 to 8 are exact in every cache dtype, FP8 included
_BASE = 8
_FP8 = {"fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}


class UnreadableCache(ValueError):
    """K and V cannot be told from this cache. The text says why."""


def cache_of(layer: Any) -> torch.Tensor:
    """The layer's cache; older releases keep a list of one."""
    cache = layer.kv_cache
    return cache[0] if isinstance(cache, (list, tuple)) else cache


class BlockReader:
    """Reads blocks of one attention layer as K and V, each (blocks, kv_heads, block_size, head_dim).

    In the cache's dtype; an FP8 cache is multiplied with its scales, to float32. Raises UnreadableCache.
    """

    def __init__(self, layer: Any, spec: Any) -> None:
        kind = type(spec).__name__
        if "MLA" in kind or not getattr(spec, "head_size", 0):
            what = "a compressed latent" if "MLA" in kind else "a state"
            raise UnreadableCache("%s: these layers cache %s, no keys and values" % (kind, what))
        self.layer = layer
        self.heads, self.head_dim = int(spec.num_kv_heads), int(spec.head_size)
        self.value_dim = int(getattr(spec, "head_size_v", None) or self.head_dim)
        self.block_size = int(spec.block_size)
        self.fp8 = _fp8(layer)
        cache = cache_of(layer)
        self.learned = cache.device.type == "cpu" and cache.dim() == 4
        self.kernel_block = _tokens_of_block(cache, self.heads, self.head_dim, self.value_dim)
        if self.block_size % self.kernel_block:
            raise UnreadableCache("blocks of %d tokens in a cache of %d" % (self.block_size, self.kernel_block))
        self._index = _learn(layer, cache, self.heads, self.head_dim, self.value_dim) if self.learned else None

    def read(self, blocks: Any) -> Tuple[torch.Tensor, torch.Tensor]:
        cache = cache_of(self.layer)
        ratio = self.block_size // self.kernel_block
        wanted = [block * ratio + part for block in blocks for part in range(ratio)]
        key, value = self._split(cache, torch.tensor(wanted, dtype=torch.long, device=cache.device))
        return self._finish(key, ratio, "k"), self._finish(value, ratio, "v")

    def _split(self, cache: torch.Tensor, wanted: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """K and V (kernel blocks, kv_heads, kernel block, dim) as they are stored."""
        if self._index is not None:
            flat = cache[wanted].flatten(1)
            key, value = (flat[:, index.flatten()].view(len(wanted), *index.shape) for index in self._index)
            return key, value
        if cache.dim() == 4:
            key, value = cache[wanted].split([self.head_dim, self.value_dim], -1)
            return key, value
        pair = cache[:, wanted].unbind(0) if cache.shape[0] == 2 else cache[wanted].unbind(1)
        key, value = (part.permute(0, 2, 1, 3) for part in pair)  # from (blocks, tokens, heads, dim)
        return key, value

    def _finish(self, part: torch.Tensor, ratio: int, which: str) -> torch.Tensor:
        part = part.reshape(len(part) // ratio, ratio, *part.shape[1:]).transpose(1, 2).flatten(2, 3).contiguous()
        if self.fp8 is not None:
            part = part.view(self.fp8).float() * float(getattr(self.layer, "_%s_scale_float" % which, 1.0))
        return part.to("cpu", copy=True)


def _fp8(layer: Any) -> Optional[torch.dtype]:
    """FP8 type of a quantised cache, None for a plain one."""
    cache, name = cache_of(layer), str(getattr(layer, "kv_cache_dtype", "auto"))
    if name in _FP8:
        return getattr(torch, _FP8[name])
    if cache.dtype in (torch.float32, torch.bfloat16, torch.float16):
        return None
    raise UnreadableCache("a KV cache of type %s is not decoded" % name)


def _tokens_of_block(cache: torch.Tensor, heads: int, head_dim: int, value_dim: int) -> int:
    """Tokens in a block of the cache tensor. Raises UnreadableCache for a shape that is not known."""
    shape = tuple(cache.shape)
    if len(shape) == 4 and shape[1] == heads and shape[3] == head_dim + value_dim:
        return shape[2]
    if len(shape) == 5 and 2 in shape[:2] and shape[3:] == (heads, head_dim) and head_dim == value_dim:
        return shape[2]
    raise UnreadableCache(
        "a KV cache of shape %s for %d heads of %d is none of the known layouts" % (list(shape), heads, head_dim)
    )


_known: Dict[Any, Tuple[torch.Tensor, torch.Tensor]] = {}


def _learn(
    layer: Any, cache: torch.Tensor, heads: int, key_dim: int, value_dim: int
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Offsets of K and V, int64 (heads, tokens, dim), within a flattened block. Raises UnreadableCache."""
    kind = type(layer.impl)
    if not hasattr(kind, "do_kv_cache_update"):
        raise UnreadableCache("%s writes its cache inside the attention kernel" % kind.__name__)
    name = (kind, cache.dtype, tuple(cache.shape[1:]), key_dim, str(getattr(layer, "isa", "")), str(layer.dtype))
    if name not in _known:
        _known[name] = _write_and_look(layer, cache, heads, key_dim, value_dim)
    return _known[name]


def _write_and_look(
    layer: Any, cache: torch.Tensor, heads: int, key_dim: int, value_dim: int
) -> Tuple[torch.Tensor, torch.Tensor]:
    tokens = cache.shape[2]
    scratch = torch.zeros((2, *cache.shape[1:]), dtype=cache.dtype)
    slots = torch.arange(tokens, dtype=torch.long) + tokens  # all of block 1
    plain = _without_scales(layer)
    # the class's own method: a fault may sit in front of the instance's
    write = type(layer.impl).do_kv_cache_update
    fp8 = _fp8(layer)
    found = []
    for which, dim in enumerate((key_dim, value_dim)):
        count = heads * tokens * dim
        number = torch.arange(count).view(tokens, heads, dim)
        code = torch.zeros(scratch[1].numel(), dtype=torch.long)
        written = torch.zeros_like(code, dtype=torch.bool)
        weight = 1
        while weight < count:
            pair = [torch.zeros(tokens, heads, size, dtype=layer.dtype) for size in (key_dim, value_dim)]
            pair[which] = ((number // weight) % _BASE + 1).to(layer.dtype)
            scratch.zero_()
            write(layer.impl, plain, pair[0], pair[1], scratch, slots)
            stored = scratch[1].flatten()
            digits = (stored if fp8 is None else stored.view(fp8)).float().round().long()
            written = digits > 0
            code += torch.where(written, (digits - 1) * weight, torch.zeros_like(digits))
            weight *= _BASE
        places = written.nonzero().flatten()
        offsets = torch.full((count,), -1, dtype=torch.long)
        if len(places) == count:
            offsets[code[places].clamp(0, count - 1)] = places
        if len(places) != count or bool((offsets < 0).any()):
            raise UnreadableCache("the backend's write does not put every value in a place of its own")
        found.append(offsets.view(tokens, heads, dim).permute(1, 0, 2).contiguous())
    return found[0], found[1]


def _without_scales(layer: Any) -> Any:
    """A copy of `layer` whose cache scales are 1."""
    plain = copy.copy(layer)
    plain._buffers = dict(layer._buffers)
    for which in ("k", "v"):
        if hasattr(plain, "_%s_scale" % which):
            setattr(plain, "_%s_scale" % which, torch.ones(()))
        setattr(plain, "_%s_scale_float" % which, 1.0)
    return plain
