"""Automatic triage: when the logits fail, tensors and KV cache of the worst prompts, in the engine that is open."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.prompts.context import Goldens, PluginContext
from accuracy_core.prompts.evidence import KV, TENSORS
from accuracy_core.prompts.plugin import PromptPlugin
from accuracy_core.prompts.replacing import size
from accuracy_core.prompts.running import Work, run_alone
from accuracy_core.prompts.triage_tree import TriageTree, load_triage_tree
from accuracy_core.schemas import Escalation, PromptResult

#: plugins that triage adds, and the engine capability that each needs
ESCALATED = {KV: "kv_cache", TENSORS: "hooks"}


@dataclass(frozen=True)
class PickedGoldens(Mapping[str, list[Any]]):
    """Goldens of some of the prompts, in the order of `positions`."""

    goldens: Goldens
    positions: tuple[int, ...]

    def __getitem__(self, name: str) -> list[Any]:
        values = self.goldens[name]
        return [values[position] for position in self.positions]

    def __iter__(self) -> Any:
        return iter(self.goldens)

    def __len__(self) -> int:
        return len(self.goldens)

    @property
    def prompt_keys(self) -> list[str] | None:
        keys = getattr(self.goldens, "prompt_keys", None)
        return None if keys is None else [keys[position] for position in self.positions]


def escalate(ctx: PluginContext, work: Work, results: Sequence[PromptResult], plugins: Sequence[PromptPlugin]) -> None:
    """Run `plugins` on the worst failing prompts of `results` in `ctx.engine`; `work` gets their results.

    Nothing happens when no prompt failed. A plugin that fails, or whose capability the engine lacks, is recorded as not
    measured with the reason: what the logits said stands.
    """
    tree = load_triage_tree()
    failing = [result for result in results if result.verdict not in (None, Verdict.PASS)]
    if not failing or ctx.engine is None:
        return
    chosen = worst_prompts(results, tree)
    inner = narrowed(ctx, [result.index for result in chosen])
    start = time.monotonic()
    ran, reasons = [], {}
    for plugin in plugins:
        lacks = _lacks(ctx, plugin.name)
        if lacks:
            reasons[plugin.name] = lacks
            continue
        run_alone(plugin, replace(inner, progress=_labelled(ctx, plugin.name)), work)
        ran.append(plugin.name)
        status = work.status[plugin.name]
        if status.verdict is None:
            reasons[plugin.name] = "; ".join(status.errors.values()) or "nothing was compared"
            # what triage could not find out must not turn a judged run into a broken one
            work.status[plugin.name] = status.model_copy(update={"outcome": Outcome.NOT_MEASURED})
    work.escalation = Escalation(
        prompts=[result.index for result in chosen],
        failing=len(failing),
        plugins=ran,
        not_measured=reasons,
        duration_s=round(time.monotonic() - start, 3),
    )


def worst_prompts(results: Sequence[PromptResult], tree: TriageTree) -> list[PromptResult]:
    """The failing prompts to look at, worst first: as many as the tree's bound says, and none that is too long."""
    failing = [result for result in results if result.verdict not in (None, Verdict.PASS)]
    ranked = sorted(failing, key=_badness, reverse=True)
    short = [result for result in ranked if positions(result) <= tree.bounds["escalation_positions"]]
    shortest = sorted(ranked, key=positions)[:1]
    return (short or shortest)[: int(tree.bounds["escalation_prompts"])]


def positions(result: PromptResult) -> int:
    """Positions that are computed for a prompt: its tokens and all forced ones but the last."""
    return len(result.prompt_token_ids) + max(len(result.token_ids) - 1, 0)


def _badness(result: PromptResult) -> tuple[bool, bool, float]:
    value = size(result.rows)
    return result.verdict is Verdict.FAIL, bool(result.guards), math.inf if math.isnan(value) else value


def narrowed(ctx: PluginContext, indices: Sequence[int]) -> PluginContext:
    """The context for the prompts with these numbers, in this order."""
    place = {prompt.index: position for position, prompt in enumerate(ctx.prepared)}
    chosen = tuple(place[index] for index in indices)
    return replace(
        ctx,
        prompts=tuple(ctx.prompts[position] for position in chosen),
        prepared=tuple(ctx.prepared[position] for position in chosen),
        goldens=None if ctx.goldens is None else PickedGoldens(ctx.goldens, chosen),
    )


def _lacks(ctx: PluginContext, name: str) -> str:
    capability = ESCALATED.get(name)
    if ctx.engine is None or capability is None or getattr(ctx.engine.capabilities, capability):
        return ""
    return f"engine {ctx.engine.name} has no capability `{capability}`"


def _labelled(ctx: PluginContext, name: str) -> Any:
    return lambda step, done, total: ctx.progress(f"triage: {name}: {step}", done, total)
