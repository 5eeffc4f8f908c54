"""Goldens of the prepared prompts, for the target's dtype. Needs no device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accuracy_core.prompts.context import Goldens
from accuracy_core.prompts.prepared import PreparedPrompts
from accuracy_core.schemas import EngineSpec

if TYPE_CHECKING:
    from accuracy_core.goldens.order import GoldenOrder


def compute_goldens(
    prepared: PreparedPrompts,
    spec: EngineSpec,
    output_length: int,
    *,
    tokenizer: Any = None,
    goldens_dir: str | Path | None = None,
    obtain: Callable[[GoldenOrder], Goldens] | None = None,
) -> Goldens:
    """FP32 greedy logits and target-dtype teacher-forced logits of all prompts: one load per dtype, through the cache.

    `fp32_logits`, `dtype_logits`: lists with one float tensor (output_length, 1, vocab) per prompt; `input_ids`.
    `obtain` fills the order, here by default; a scheduler may do so elsewhere. Raises ReferenceError_ when the
    reference itself is unusable, ConfigurationError when the checkpoint is.
    """
    from accuracy_core.goldens.order import GoldenOrder
    from accuracy_core.models import resolve_model

    order = GoldenOrder(
        model_id=spec.model,
        model_checkpoint=str(resolve_model(spec.model, need_tokenizer=False)),
        prompts=[list(ids) for ids in prepared.token_ids()],
        output_length=output_length,
        dtype=reference_dtype(spec),
        kv_cache_dtype=spec.kv_cache_dtype,
        hf_overrides=spec.hf_overrides or None,
        trust_remote_code=spec.trust_remote_code,
        num_threads=spec.num_threads,
        cache_dir=None if goldens_dir is None else str(goldens_dir),
    )
    return order.obtain() if obtain is None else obtain(order)


def reference_dtype(spec: EngineSpec) -> str:
    """Dtype of the expected reference: the target's; `auto` is taken as bfloat16."""
    return "bfloat16" if spec.dtype == "auto" else spec.dtype
