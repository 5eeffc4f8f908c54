"""K and V of the target: one replay per prompt, with what its attention was given beside what its cache holds."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accuracy_core.capture.kv.files import TargetFiles
from accuracy_core.capture.names import TapPlan, plan_taps
from accuracy_core.capture.taps import TAP_PREFIX
from accuracy_core.errors import ConfigurationError, NotMeasuredError
from accuracy_core.prompts.context import PluginContext
from accuracy_core.schemas import CaptureSpec, ReplayRequest, ReplayResult

if TYPE_CHECKING:
    import torch

    from accuracy_core.capture.kv.files import GivenKv

_GIVEN = r"model\.layers\.\d+\.self_attn\.(?:key|value)"


def plan_given(ctx: PluginContext) -> TapPlan:
    """Taps of what attention is given to cache; empty for an engine or a model without them."""
    from accuracy_core.engines.checkpoint import effective_config, resolve_checkpoint

    assert ctx.engine is not None
    names = ctx.engine.module_names() if ctx.engine.capabilities.hooks else {}
    if not names:
        return TapPlan({})
    config = effective_config(ctx.server_config, resolve_checkpoint(ctx.server_config))
    try:
        return plan_taps(
            names,
            config,
            [_GIVEN],
            tensor_parallel_size=ctx.server_config.tensor_parallel_size,
            canonical=ctx.engine.name == "transformers",
        )
    except (ConfigurationError, KeyError):
        return TapPlan({})


def replay_kv(ctx: PluginContext, position: int, tokens: list[int], plan: TapPlan) -> ReplayResult:
    """Replay one prompt along `tokens`. Raises NotMeasuredError when the engine could not; EngineDiedError passes."""
    assert ctx.engine is not None
    request = ReplayRequest(
        request_id=f"kv-{ctx.prepared[position].index}",
        prompt_token_ids=list(ctx.prompts[position]),
        forced_token_ids=tokens,
        capture=CaptureSpec(logits=False, kv=True, modules=plan.raw),
    )
    (answer,) = ctx.engine.replay([request])
    if answer.error:
        raise NotMeasuredError(answer.error)
    if answer.token_ids != tokens[: len(answer.token_ids)]:
        raise NotMeasuredError("the engine did not follow the forced tokens: its cache belongs to another text")
    if answer.tensors is None or not any(name.startswith("kv.") for name in answer.names):
        reasons = "; ".join(dict.fromkeys(answer.missing.values())) or "the engine gave none, and no reason"
        raise NotMeasuredError(f"no K and V of the target: {reasons}")
    return answer


def files_of(answer: ReplayResult) -> TargetFiles:
    return TargetFiles([str(answer.tensors), *answer.shards], answer.missing)


def remove_files(answer: ReplayResult) -> None:
    """Tensors of one prompt are large: they go before the next prompt's come."""
    for name in (answer.tensors, *answer.shards):
        if name is not None:
            with contextlib.suppress(OSError):
                Path(name).unlink()


def given_by(plan: TapPlan, missing: Mapping[str, str]) -> GivenKv | None:
    """Reads what attention was given out of a rank's raw taps; None for a plan without taps."""
    if not plan.sources:
        return None

    def given(layer: int, which: str, raw: Mapping[str, Any]) -> torch.Tensor | None:
        tap = f"model.layers.{layer}.self_attn.{which}"
        source = plan.sources.get(tap)
        # a tap with rows that were not recorded says nothing of the others' order
        if source is None or source.raw not in raw or TAP_PREFIX + source.raw in missing:
            return None
        return plan.assemble({source.raw: raw[source.raw]}).get(tap)

    return given
