"""Module tensors of both references, and what their modules make of the target's tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accuracy_core.capture.taps import TAP_PREFIX
from accuracy_core.prompts.context import PluginContext
from accuracy_core.prompts.plugins.captured_goldens import all_forced_tokens, open_capture

if TYPE_CHECKING:
    import torch

    from accuracy_core.capture.reference import ReferenceTaps

#: share of the free memory that FP32 captures may take while references are computed
_MEMORY_SHARE = 0.2


@dataclass
class TensorReferences:
    """References of the prompts of one context, by position there; tensors are read when a prompt's turn comes.

    `tokens`: what every side is forced along. `order`: taps in the order of execution.
    """

    cache_dir: Path
    tokens: dict[int, list[int]] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    kept: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    def read(self, position: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """(FP32, target's dtype): tap -> (positions, features). Raises ReferenceError_ when the golden is gone."""
        names, load = open_capture(
            self.cache_dir, self.keys.get(position, ""), self.kept.get(position), "module tensors are"
        )
        sides = []
        for side in ("fp32", "dtype"):
            prefix = f"{side}.{TAP_PREFIX}"
            sides.append({name.removeprefix(prefix): load(name)[0] for name in names if name.startswith(prefix)})
        return sides[0], sides[1]


def model_taps(ctx: PluginContext) -> ReferenceTaps:
    """What the reference model can be tapped for. Loads no weights."""
    from accuracy_core.capture.reference import reference_taps

    return reference_taps(reference_config(ctx), trust_remote_code=ctx.server_config.trust_remote_code)


def obtain_references(
    ctx: PluginContext, cache_dir: Path, taps: Sequence[str], found: ReferenceTaps
) -> TensorReferences:
    """Tensors of every prompt's references at `taps`, teacher-forced on the FP32 reference's greedy tokens; computed or
    cached under a key of their own.

    A prompt whose golden is unusable is recorded in `errors`. Raises ConfigurationError when the checkpoint is.
    """
    from accuracy_core.capture.reference import ReferenceCapture

    references = TensorReferences(cache_dir)
    # without goldens the references still have to decode
    forced = all_forced_tokens(ctx, references.errors) if ctx.goldens is not None else {}
    room = _room()
    batch: list[int] = []
    size = 0
    for position in range(len(ctx.prompts)):
        if position in references.errors:
            continue
        own = 4 * found.values(taps, len(ctx.prompts[position]) + ctx.output_length - 1, ctx.output_length)
        if batch and (size + own > room or len(forced.get(batch[0], [])) != len(forced.get(position, []))):
            _compute(ctx, batch, forced, ReferenceCapture(taps), references)
            batch, size = [], 0
        batch.append(position)
        size += own
    if batch:
        _compute(ctx, batch, forced, ReferenceCapture(taps), references)
    return references


def _room() -> float:
    from accuracy_core.goldens.memory import free_bytes

    return free_bytes() * _MEMORY_SHARE


def _compute(
    ctx: PluginContext, batch: list[int], forced: dict[int, list[int]], capture: Any, references: TensorReferences
) -> None:
    from accuracy_core.goldens import get_cached_reference_goldens
    from accuracy_core.goldens.disk import DiskTier

    spec = ctx.server_config
    goldens = get_cached_reference_goldens(
        spec.model,
        _config(ctx)[0],
        prompts=[list(ctx.prompts[position]) for position in batch],
        output_length=len(forced[batch[0]]) if forced else ctx.output_length,
        dtype=ctx.dtype,
        kv_cache_dtype=spec.kv_cache_dtype,
        hf_overrides=spec.hf_overrides or None,
        cache_dir=references.cache_dir,
        forced_token_ids=[forced[position] for position in batch] if forced else None,
        trust_remote_code=spec.trust_remote_code,
        num_threads=spec.num_threads,
        capture=capture,
    )
    held = set(DiskTier(references.cache_dir).keys())
    for position, golden, tokens in zip(batch, goldens.goldens, goldens["token_ids"], strict=True):
        references.tokens[position] = list(tokens)
        references.keys[position] = golden.key
        if golden.key not in held:
            references.kept[position] = golden


@contextmanager
def local_model(ctx: PluginContext, *, wide: bool) -> Iterator[Any]:
    """A reference model for the record-and-replace pass: `wide` is FP32 (FP64 for a float32 target), else the target's
    dtype."""
    import torch

    from accuracy_core.goldens.narrow_products import use_float32_kernels
    from accuracy_core.goldens.reference_config import attention_implementation, torch_dtype
    from accuracy_core.goldens.reference_model import load_reference_model, one_model, torch_threads

    spec = ctx.server_config
    checkpoint, config = _config(ctx)
    narrow = torch_dtype(ctx.dtype)
    dtype = narrow if not wide else torch.float64 if narrow is torch.float32 else torch.float32
    loader = partial(
        load_reference_model,
        attn_implementation=attention_implementation(config),
        trust_remote_code=spec.trust_remote_code,
    )
    with torch_threads(spec.num_threads), one_model(loader, checkpoint, dtype, config) as holder:
        if dtype in (torch.bfloat16, torch.float16):
            use_float32_kernels(holder[0], dtype)
        yield holder[0]


def reference_config(ctx: PluginContext) -> Any:
    """The transformers configuration of the reference: the checkpoint's with the target's overrides."""
    return _config(ctx)[1]


def _config(ctx: PluginContext) -> tuple[str, Any]:
    """(checkpoint, transformers configuration with the target's overrides)."""
    from accuracy_core.engines.checkpoint import resolve_checkpoint
    from accuracy_core.goldens.reference_config import load_config

    spec = ctx.server_config
    checkpoint = resolve_checkpoint(spec)
    config = load_config(checkpoint, None, spec.hf_overrides or None, trust_remote_code=spec.trust_remote_code)
    return str(checkpoint), config
