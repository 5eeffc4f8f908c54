"""Reference tensors for the replacement experiment: captured in the target's dtype, put where the engine has them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from accuracy_core.errors import ConfigurationError, NotMeasuredError
from accuracy_core.prompts.context import PluginContext
from accuracy_core.schemas import Replacement

if TYPE_CHECKING:
    import torch

    from accuracy_core.capture.names import TapPlan


@dataclass(frozen=True)
class CapturedInjections:
    """Rows of one prompt. `order`: canonical taps in order of execution; `rows`: tap -> (positions, features)."""

    order: tuple[str, ...]
    rows: Mapping[str, torch.Tensor]
    plan: TapPlan
    folder: Path

    def taps(self, position: int) -> list[str]:
        return list(self.order)

    def possible(self, tap: str) -> bool:
        return tap in self.rows and bool(self.plan.replacement(tap))

    def replacements(self, position: int, taps: Sequence[str]) -> list[Replacement]:
        for tap in taps:
            if tap not in self.rows:
                raise NotMeasuredError(f"the reference has no tensor at {tap}")
            if not self.plan.replacement(tap):
                why = self.plan.missing.get(tap, "its place in this engine is not known")
                raise NotMeasuredError(f"{tap} cannot be replaced in this engine: {why}")
        file = self.folder / f"{len(list(self.folder.iterdir()))}.safetensors"
        return self.plan.write_replacements({tap: self.rows[tap] for tap in taps}, file)


@contextmanager
def captured_injections(
    ctx: PluginContext, position: int, forced: Sequence[int], order: Sequence[str], wanted: Sequence[str]
) -> Iterator[CapturedInjections]:
    """Injections for the prompt at `position`, forced along `forced`; their files live as long as the context.

    `order`: taps in order of execution, `wanted` those that may be replaced. The reference is loaded once, in the
    target's dtype. Raises ConfigurationError, ReferenceError_ when it cannot be, NotMeasuredError for an engine that
    does not tell its modules.
    """
    plan = injection_plan(ctx)
    if not any(plan.replacement(tap) for tap in wanted):
        raise NotMeasuredError(f"{', '.join(wanted)} cannot be replaced in this engine")
    ids = [*ctx.prompts[position], *forced][: len(ctx.prompts[position]) + len(forced) - 1]
    rows = reference_rows(ctx, ids, [tap for tap in wanted if plan.replacement(tap)])
    with tempfile.TemporaryDirectory(prefix="assay-replace-") as folder:
        yield CapturedInjections(tuple(order), rows, plan, Path(folder))


def injection_plan(ctx: PluginContext) -> TapPlan:
    """Every tap of the target. Raises NotMeasuredError when tensors cannot be put into it."""
    from accuracy_core.capture.names import plan_taps
    from accuracy_core.engines.checkpoint import effective_config, resolve_checkpoint

    assert ctx.engine is not None
    names = ctx.engine.module_names()
    if not names:
        raise NotMeasuredError(f"engine {ctx.engine.name} does not tell its modules")
    config = effective_config(ctx.server_config, resolve_checkpoint(ctx.server_config))
    ranks, own_names = ctx.server_config.tensor_parallel_size, ctx.engine.name == "transformers"
    if ranks > 1:
        raise NotMeasuredError("tensors cannot be replaced in an engine whose weights are sharded over ranks")
    return plan_taps(names, config, tensor_parallel_size=ranks, canonical=own_names)


def reference_rows(ctx: PluginContext, ids: Sequence[int], taps: Sequence[str]) -> dict[str, torch.Tensor]:
    """Canonical tap -> (positions, features) of the reference in the target's dtype, one forward over `ids`."""
    import torch

    from accuracy_core.capture.hf_taps import HfTaps, available_taps
    from accuracy_core.engines.checkpoint import resolve_checkpoint
    from accuracy_core.goldens.reference_config import attention_implementation, load_config, torch_dtype
    from accuracy_core.goldens.reference_model import load_reference_model, one_model, torch_threads

    spec = ctx.server_config
    checkpoint = resolve_checkpoint(spec)
    config = load_config(checkpoint, None, spec.hf_overrides or None, trust_remote_code=spec.trust_remote_code)
    loader = partial(
        load_reference_model,
        attn_implementation=attention_implementation(config),
        trust_remote_code=spec.trust_remote_code,
    )
    with torch_threads(spec.num_threads), one_model(loader, checkpoint, torch_dtype(ctx.dtype), config) as holder:
        known = set(available_taps(holder[0]))
        chosen = [tap for tap in taps if tap in known]
        if not chosen:
            raise ConfigurationError(f"the reference has no module {', '.join(taps)}")
        with torch.inference_mode(), HfTaps(holder[0], chosen) as recorder:
            holder[0](input_ids=torch.tensor([list(ids)]), use_cache=False)
            return recorder.collect()
