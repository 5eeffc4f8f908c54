"""K and V of both references: from the golden pass, before any engine is opened, read back one prompt at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from accuracy_core.capture.kv import BaseEnvelope
from accuracy_core.capture.kv.model_facts import values_per_position
from accuracy_core.prompts.context import PluginContext
from accuracy_core.prompts.plugins.captured_goldens import all_forced_tokens, open_capture

if TYPE_CHECKING:
    import torch

    from accuracy_core.capture.kv.files import ReferenceKv
    from accuracy_core.capture.kv.limits import KvLimits
    from accuracy_core.goldens import Goldens

#: share of the free memory that FP32 captures may take while references are computed
_MEMORY_SHARE = 0.2
#: prompts per load of the models where the size of their caches is not known
_BATCH = 8


@dataclass
class KvReferences:
    """References of the prompts of one context, by position there. `tokens`: what every side is forced along.

    Tensors are not kept: they are read from the golden cache when a prompt's turn comes, unless the cache is unusable.
    """

    cache_dir: Path
    cache_dtype: str = "auto"
    scales: dict[tuple[int, str], float] = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    envelope: BaseEnvelope = field(default_factory=BaseEnvelope)
    kept: dict[int, Goldens] = field(default_factory=dict)

    @contextmanager
    def reading(self, position: int) -> Iterator[tuple[list[int], ReferenceKv]]:
        """(layers, function that reads a layer's K or V of both references). Raises ReferenceError_ if it is gone."""
        names, load = open_capture(self.cache_dir, self.keys.get(position, ""), self.kept.get(position), "KV cache is")
        layers = sorted({int(name.split(".")[2]) for name in names if name.startswith("fp32.kv.")})
        yield layers, self._reader(load)

    def _reader(self, load: Callable[[str], list[torch.Tensor]]) -> ReferenceKv:
        def read(layer: int, which: str) -> tuple[torch.Tensor, torch.Tensor]:
            (fp32,), (expected,) = load(f"fp32.kv.{layer}.{which}"), load(f"dtype.kv.{layer}.{which}")
            if self.cache_dtype != "auto":
                from accuracy_core.goldens.fp8_kv import round_e4m3

                expected = round_e4m3(expected, self.scales.get((layer, which[0]), 1.0))
            return fp32, expected

        return read


def obtain_references(ctx: PluginContext, cache_dir: Path, limits: KvLimits) -> KvReferences:
    """K and V of every prompt's references, teacher-forced on the FP32 reference's greedy tokens; computed or cached.

    A prompt whose reference is unusable is recorded in `errors`. Raises ConfigurationError when the checkpoint is.
    """
    from accuracy_core.engines.checkpoint import effective_config, resolve_checkpoint

    references = KvReferences(cache_dir, cache_dtype=_fp8(ctx.server_config.kv_cache_dtype))
    checkpoint = resolve_checkpoint(ctx.server_config)
    if references.cache_dtype != "auto":
        from accuracy_core.goldens.fp8_kv import kv_scales

        references.scales = kv_scales(checkpoint)
    references.tokens = all_forced_tokens(ctx, references.errors)
    config = effective_config(ctx.server_config, checkpoint)
    for batch in _batches(ctx, references.tokens, values_per_position(config)):
        _compute(ctx, checkpoint, batch, references, limits)
    return references


def positions_of(ctx: PluginContext, position: int, tokens: Sequence[int] | None = None) -> int:
    """Positions that are cached for a prompt: all of its tokens and all forced ones but the last."""
    count = ctx.output_length if tokens is None else len(tokens)
    return len(ctx.prompts[position]) + count - 1


def _batches(ctx: PluginContext, tokens: dict[int, list[int]], width: int | None) -> Iterator[list[int]]:
    """Positions of prompts with equally many tokens, whose FP32 caches fit into memory together."""
    from accuracy_core.goldens.memory import free_bytes

    room = free_bytes() * _MEMORY_SHARE
    for length in sorted({len(item) for item in tokens.values()}):
        batch: list[int] = []
        size = 0.0
        for position in (p for p, item in tokens.items() if len(item) == length):
            own = positions_of(ctx, position, tokens[position]) * (width or 0) * 4
            if batch and (size + own > room or (width is None and len(batch) >= _BATCH)):
                yield batch
                batch, size = [], 0.0
            batch.append(position)
            size += own
        if batch:
            yield batch


def _compute(ctx: PluginContext, checkpoint: str, batch: list[int], references: KvReferences, limits: KvLimits) -> None:
    from accuracy_core.capture.kv.reference import KvCapture
    from accuracy_core.goldens import get_cached_reference_goldens
    from accuracy_core.goldens.disk import DiskTier

    spec = ctx.server_config
    goldens = get_cached_reference_goldens(
        spec.model,
        checkpoint,
        prompts=[list(ctx.prompts[position]) for position in batch],
        output_length=len(references.tokens[batch[0]]),
        dtype=ctx.dtype,
        kv_cache_dtype=spec.kv_cache_dtype,
        hf_overrides=spec.hf_overrides or None,
        cache_dir=references.cache_dir,
        forced_token_ids=[references.tokens[position] for position in batch],
        trust_remote_code=spec.trust_remote_code,
        num_threads=spec.num_threads,
        capture=KvCapture(),
    )
    held = set(DiskTier(references.cache_dir).keys())
    for position, golden in zip(batch, goldens.goldens, strict=True):
        references.keys[position] = golden.key
        if golden.key not in held:
            references.kept[position] = golden
    del goldens
    for position in batch:
        _add_noise(ctx, references, position, limits)


def _add_noise(ctx: PluginContext, references: KvReferences, position: int, limits: KvLimits) -> None:
    """Size of the reference's own error, over all prompts: what a target may do anywhere."""
    from accuracy_core.capture.kv.envelope import Noise
    from accuracy_core.capture.kv.limits import noise_bits
    from accuracy_core.capture.kv.rows import measure_rows
    from accuracy_core.capture.kv.sides import WHICH

    noise = Noise.of(ctx.dtype, noise_bits(ctx.dtype, references.cache_dtype), limits)
    with references.reading(position) as (layers, read):
        for layer in layers:
            for which in WHICH:
                fp32, expected = read(layer, which)
                rows = measure_rows(fp32, expected, expected, histograms=False)
                references.envelope.add(layer, which, rows, noise)


def _fp8(kv_cache_dtype: str) -> str:
    """`auto` for a cache in the model's dtype."""
    from accuracy_core.capture.kv.limits import CACHE_DTYPES

    return kv_cache_dtype if kv_cache_dtype in CACHE_DTYPES else "auto"
