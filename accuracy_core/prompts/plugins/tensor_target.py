"""Module tensors of the target: replayed along the forced tokens, joined over ranks, under canonical names."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accuracy_core.capture.names import TapPlan, plan_taps
from accuracy_core.capture.reconstruction import ReconstructionFn, ShardLayout
from accuracy_core.capture.taps import TAP_PREFIX
from accuracy_core.engines.protocol import TargetEngine
from accuracy_core.errors import InputMismatchError, NotMeasuredError
from accuracy_core.prompts.context import PluginContext
from accuracy_core.schemas import CaptureSpec, ReplayRequest, ReplayResult

if TYPE_CHECKING:
    import torch

_LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)(?:\.|$)")


@dataclass(frozen=True)
class TargetTensors:
    """One prompt's tensors, canonical tap -> (positions, features). `wrong`: tap -> why its ranks do not fit together;
    `missing`: tap -> why it is not there."""

    tensors: Mapping[str, torch.Tensor]
    missing: Mapping[str, str]
    wrong: Mapping[str, str]


@contextmanager
def capturing_engine(ctx: PluginContext) -> Iterator[TargetEngine]:
    """The shared engine if it takes tensors, else one of our own, closed on leaving. Raises NotMeasuredError when that
    does not take tensors either."""
    from accuracy_core.prompts.engine_session import shared_engine

    shared = ctx.engine if ctx.engine is not None and ctx.engine.capabilities.hooks else None
    if ctx.engine is not None and shared is None:
        raise NotMeasuredError(
            f"engine {ctx.engine.name} has no capability `hooks`: module tensors cannot be taken",
            fix="run it eagerly (enforce_eager), or use the platform's own tensor capture",
        )
    log = ctx.output_dir.tensor_compare / "engine.log"
    with shared_engine(ctx.server_config, shared, None, None, log if isinstance(log, Path) else None) as engine:
        if not engine.capabilities.hooks:
            raise NotMeasuredError(
                f"engine {engine.name} has no capability `hooks`: module tensors cannot be taken",
                fix="run it eagerly (enforce_eager), or use the platform's own tensor capture",
            )
        yield engine


def target_plan(
    ctx: PluginContext, engine: TargetEngine, config: Mapping[str, Any], taps: Sequence[str], ranks: int
) -> TapPlan:
    """Where the engine has `taps`. Raises NotMeasuredError for an engine that does not tell its modules."""
    names = engine.module_names()
    if not names:
        raise NotMeasuredError(f"engine {engine.name} does not tell its modules")
    plan = plan_taps(names, config, tensor_parallel_size=ranks, canonical=engine.name == "transformers")
    return plan.only(taps)


def layer_problem(module_names: Mapping[str, str], config: Mapping[str, Any]) -> str:
    """Why the target's decoder does not have the reference's depth; empty when it does."""
    found = {int(match[1]) for name in module_names if (match := _LAYER.search(name))}
    text_config = config.get("text_config") or config
    expected = int(text_config.get("num_hidden_layers") or text_config.get("n_layer") or 0)
    if not found or not expected or max(found) + 1 == expected:
        return ""
    return f"number of layers differs: target {max(found) + 1}, reference {expected}"


def replay_tensors(
    ctx: PluginContext,
    engine: TargetEngine,
    position: int,
    tokens: Sequence[int],
    plan: TapPlan,
    layout: ShardLayout,
    reconstruct: ReconstructionFn,
) -> TargetTensors:
    """Replay one prompt along `tokens`. Raises NotMeasuredError when the engine could not; EngineDiedError passes."""
    request = ReplayRequest(
        request_id=f"tensors-{ctx.prepared[position].index}",
        prompt_token_ids=list(ctx.prompts[position]),
        forced_token_ids=list(tokens),
        capture=CaptureSpec(logits=plan.logits, modules=plan.raw),
    )
    (answer,) = engine.replay([request])
    try:
        if answer.error:
            raise NotMeasuredError(answer.error)
        if list(answer.token_ids) != list(tokens)[: len(answer.token_ids)]:
            raise NotMeasuredError("the engine did not follow the forced tokens: its tensors belong to another text")
        return _assembled(answer, plan, layout, reconstruct)
    finally:
        _remove(answer)


def _assembled(
    answer: ReplayResult, plan: TapPlan, layout: ShardLayout, reconstruct: ReconstructionFn
) -> TargetTensors:
    from safetensors.torch import load_file

    files = [name for name in (answer.tensors, *answer.shards) if name is not None]
    if not files:
        raise NotMeasuredError("the engine left no tensors")
    ranks = []
    logits = None
    for number, file in enumerate(files):
        loaded = load_file(file)
        if number == 0 and not answer.shift_free:
            logits = loaded.get("logits")
        raw = {name.removeprefix(TAP_PREFIX): item for name, item in loaded.items() if name.startswith(TAP_PREFIX)}
        ranks.append(plan.assemble(raw))
    tensors: dict[str, torch.Tensor] = {}
    wrong: dict[str, str] = {}
    for tap in plan.sources:
        shards = [rank[tap] for rank in ranks if tap in rank]
        if not shards:
            continue
        try:
            tensors[tap] = reconstruct(tap, shards, layout)
        except InputMismatchError as error:
            wrong[tap] = error.message
    if plan.logits and logits is not None:
        tensors["lm_head"] = reconstruct("lm_head", [logits], layout)
    missing = dict(plan.missing)
    for tap in plan.taps:
        if tap not in tensors and tap not in wrong:
            raw_tap = plan.sources[tap].raw if tap in plan.sources else "logits"
            reasons = (answer.missing.get(name) for name in (raw_tap, TAP_PREFIX + raw_tap))
            missing[tap] = next((text for text in reasons if text), "the engine did not give it")
    return TargetTensors(tensors, missing, wrong)


def _remove(answer: ReplayResult) -> None:
    for name in (answer.tensors, *answer.shards):
        if name is not None:
            with contextlib.suppress(OSError):
                Path(name).unlink()
