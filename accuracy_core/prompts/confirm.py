"""Proof of a culprit: with reference tensors put in at the suspected module, the error behind it must vanish."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from accuracy_core.errors import AssayError, EngineDiedError, NotMeasuredError
from accuracy_core.outcome import Verdict
from accuracy_core.prompts.context import PluginContext
from accuracy_core.prompts.engine_session import read_logits
from accuracy_core.prompts.surroundings import LOGITS, control_tap, layer_of, same_in_every_layer
from accuracy_core.prompts.triage_tree import TriageTree, load_triage_tree
from accuracy_core.schemas import (
    CaptureSpec,
    Culprit,
    Replacement,
    ReplacementTrial,
    ReplayRequest,
    RowMetrics,
)

#: ratio of a row that equals the reference: its logarithm must stay finite
_SMALLEST = 1e-3


class Injections(Protocol):
    """Reference rows in the target's dtype that can be put into the target."""

    def taps(self, position: int) -> list[str]:
        """Canonical taps that were captured for the prompt at `position` of the context, in order of execution."""
        ...

    def replacements(self, position: int, taps: Sequence[str]) -> list[Replacement]:
        """What puts the reference's rows in at `taps`, all positions. Raises NotMeasuredError with the reason."""
        ...


@dataclass(frozen=True)
class Case:
    """The failing prompt that the experiment is made on. `position` counts in the context; `before` is a replay as it
    is: same engine, same prompt, nothing replaced."""

    position: int
    index: int
    forced: list[int]
    before: Judged


@dataclass(frozen=True)
class Judged:
    """Rows of one prompt, judged by themselves."""

    rows: list[RowMetrics]
    guards: int
    verdict: Verdict

    @property
    def two_way(self) -> bool:
        """No ratio was measured: a float32 target has no dtype noise."""
        return all(math.isnan(row.l2_ratio) for row in self.rows)


def open_case(ctx: PluginContext, position: int) -> Case:
    """Replay the prompt at `position` as it is. Raises NotMeasuredError when the engine cannot, EngineDiedError."""
    if ctx.engine is None or ctx.goldens is None:
        raise NotMeasuredError("there is no engine or no reference to compare with")
    if not ctx.engine.capabilities.replacement:
        raise NotMeasuredError(f"engine {ctx.engine.name} cannot replace tensors")
    fp32 = ctx.goldens["fp32_logits"][position][: ctx.output_length]
    forced = fp32[:, 0].argmax(dim=-1).tolist()
    index = ctx.prepared[position].index
    return Case(position, index, forced, _replay(f"confirm-{index}-before", position, forced, ctx, []))


def confirm(culprit: Culprit, wrong: Sequence[str], case: Case, ctx: PluginContext, injections: Injections) -> Culprit:
    """`culprit` with the experiment's result. `wrong`: modules that tensor compare found wrong by themselves, in order.

    The culprit's module is confirmed when the rows return to what clean rows show with its output replaced and do not
    with its layer's inputs replaced (where that is possible), with its output replaced in every layer, or with all of
    `wrong` replaced together. Where its own replacement is not enough, the next of `wrong` in another layer is tried
    alone: if that is enough, it becomes the culprit. `confirmed` stays None when no replay could be made, with the
    reason. Raises EngineDiedError when the engine goes.
    """
    tree = load_triage_tree()
    module = str(culprit.module)
    verdict, trials, text = _examine(module, case, ctx, injections, tree)
    if verdict is not False:
        return culprit.model_copy(update={"trials": trials, "confirmed": verdict, "confirmation": text})
    texts = [text]
    same = same_in_every_layer(module, injections.taps(case.position))
    if trials[0].kind == "output" and not trials[0].healed and not set(wrong) <= {module, *same}:
        together = _trial("together", module, case, ctx, injections, tree, taps=list(dict.fromkeys([module, *wrong])))
        trials = [*trials, together]
        verdict = bool(together.healed)
        texts.append(_together_text(len(set(wrong) | {module}), together))
    update: dict[str, object] = {}
    second = next((tap for tap in wrong if tap not in {module, *same} and layer_of(tap) != culprit.layer), None)
    if second is not None:
        alone, made, text = _examine(second, case, ctx, injections, tree, everywhere=False)
        trials, texts = [*trials, *made], [*texts, text]
        if alone:
            verdict, update = True, _moved(culprit, second)
    update |= {"trials": trials, "confirmed": verdict, "confirmation": "; then ".join(texts)}
    return culprit.model_copy(update=update)


def _together_text(count: int, trial: ReplacementTrial) -> str:
    if trial.healed is None:
        return f"all wrong modules together: not possible ({trial.reason})"
    word = "vanishes" if trial.healed else "stays"
    return f"all {count} modules that are wrong by themselves replaced together, the error {word} ({_figures(trial)})"


def _moved(culprit: Culprit, module: str) -> dict[str, object]:
    note = f"{culprit.module} was named first, but replacing it did not remove the error"
    return {
        "module": module,
        "layer": layer_of(module),
        "head": None,
        "position": None,
        "contradictions": [*culprit.contradictions, note],
    }


def _examine(
    module: str,
    case: Case,
    ctx: PluginContext,
    injections: Injections,
    tree: TriageTree,
    *,
    everywhere: bool = True,
) -> tuple[bool | None, list[ReplacementTrial], str]:
    """(confirmed, trials, text) for one module, and with `everywhere` for the same module in every layer."""
    control = control_tap(module, injections.taps(case.position), tree)
    if tree.kind_of(module) in LOGITS:
        if control is None:
            return None, [], f"{module}: nothing in front of it was captured, so nothing can be replaced"
        trial = _trial("inputs", control, case, ctx, injections, tree)
        if trial.healed is None:
            return None, [trial], f"{module}: not possible ({trial.reason})"
        return not trial.healed, [trial], _inputs_text(module, trial)
    output = _trial("output", module, case, ctx, injections, tree)
    if output.healed is None:
        return None, [output], f"{module}: not possible ({output.reason})"
    if not output.healed and everywhere:
        return _everywhere(module, output, case, ctx, injections, tree)
    if not output.healed:
        return False, [output], f"{module}: replaced alone, and the error stays ({_figures(output)})"
    text = f"{module}: replaced, and the error vanishes ({_figures(output)})"
    if control is None:
        return True, [output], text
    inputs = _trial("inputs", control, case, ctx, injections, tree)
    if inputs.healed is None:
        return True, [output, inputs], f"{text}; its inputs could not be replaced ({inputs.reason})"
    return not inputs.healed, [output, inputs], f"{text}; {_inputs_text(module, inputs)}"


def _everywhere(
    module: str, output: ReplacementTrial, case: Case, ctx: PluginContext, injections: Injections, tree: TriageTree
) -> tuple[bool | None, list[ReplacementTrial], str]:
    """The same module in every layer: code that is wrong is wrong in all of them."""
    text = f"{module}: replaced alone, and the error stays ({_figures(output)})"
    others = same_in_every_layer(module, injections.taps(case.position))
    if len(others) < 2:
        return False, [output], text
    trial = _trial("every_layer", module, case, ctx, injections, tree, taps=others)
    if trial.healed is None:
        return False, [output, trial], f"{text}; in every layer: not possible ({trial.reason})"
    word = "vanishes" if trial.healed else "stays"
    text += f"; replaced in all {len(others)} layers that have it, the error {word} ({_figures(trial)})"
    return bool(trial.healed), [output, trial], text


def _inputs_text(module: str, trial: ReplacementTrial) -> str:
    if trial.healed:
        return f"with {trial.module} replaced it vanishes, too ({_figures(trial)}): the fault lies in front of {module}"
    return f"with clean inputs ({trial.module} replaced) it stays ({_figures(trial)})"


def _figures(trial: ReplacementTrial) -> str:
    guards = f", guards {trial.guards_before} → {trial.guards_after}" if trial.guards_before else ""
    return f"L2 {trial.l2_before:.3g} → {trial.l2_after:.3g}{guards}"


def _trial(
    kind: str,
    tap: str,
    case: Case,
    ctx: PluginContext,
    injections: Injections,
    tree: TriageTree,
    *,
    taps: Sequence[str] = (),
) -> ReplacementTrial:
    known = {"kind": kind, "module": tap, "prompt": case.index}
    try:
        replacements = injections.replacements(case.position, taps or [tap])
        name = f"confirm-{case.index}-{kind}-{tap}"
        after = _replay(name, case.position, case.forced, ctx, replacements)
    except EngineDiedError:
        raise
    except AssayError as error:
        return ReplacementTrial(**known, reason=error.message)
    trial = ReplacementTrial(
        **known,
        l2_before=size(case.before.rows),
        l2_after=size(after.rows),
        guards_before=case.before.guards,
        guards_after=after.guards,
        verdict_after=after.verdict,
    )
    if after.two_way:
        bad = not all(row.two_way_passed for row in case.before.rows)
        healed = all(row.two_way_passed for row in after.rows) if bad else None
    else:
        healed = returned(trial, tree)
    if healed is None:
        return trial.model_copy(update={"reason": "this prompt's logits are within noise: there is no error to lose"})
    return trial.model_copy(update={"healed": healed})


def returned(trial: ReplacementTrial, tree: TriageTree) -> bool | None:
    """Did the rows return to what clean rows show? None when they were not off enough to tell."""
    limit, share = tree.bounds["healed_ratio"], tree.bounds["healed_share"]
    visible = not trial.l2_before <= limit  # NaN and infinity are visible
    if not visible and not trial.guards_before:
        return None
    if trial.guards_after or not trial.l2_after <= limit:
        return False
    if not visible or not math.isfinite(trial.l2_before):
        return True
    return trial.l2_before**2 - max(trial.l2_after, 1.0) ** 2 >= share * (trial.l2_before**2 - 1.0)


def size(rows: Sequence[RowMetrics]) -> float:
    """Geometric mean of the rows' L2 ratio, as the pooled guard takes it; infinite for rows that are not finite.

    Where no ratio was measured (float32 target): root mean square of the rows' L2 error. NaN without rows.
    """
    if any(hit.guard == "non_finite" for row in rows for hit in row.guards):
        return math.inf
    ratios = [row.l2_ratio for row in rows if not math.isnan(row.l2_ratio)]
    if ratios:
        return math.exp(sum(math.log(max(ratio, _SMALLEST)) for ratio in ratios) / len(ratios))
    errors = [row.l2 for row in rows if not math.isnan(row.l2)]
    return math.sqrt(sum(error**2 for error in errors) / len(errors)) if errors else math.nan


def _replay(
    request_id: str, position: int, forced: list[int], ctx: PluginContext, replacements: list[Replacement]
) -> Judged:
    """The prompt with `replacements` in place, judged by itself."""
    import torch

    from accuracy_core.logits.compare import compare_prompts

    assert ctx.engine is not None
    assert ctx.goldens is not None
    request = ReplayRequest(
        request_id=request_id,
        prompt_token_ids=list(ctx.prompts[position]),
        forced_token_ids=forced,
        capture=CaptureSpec(logits=True),
        replacements=replacements,
    )
    answer = ctx.engine.replay([request])[0]
    if answer.error:
        raise NotMeasuredError(answer.error)
    rows = read_logits(answer).unsqueeze(1)
    sampled = torch.tensor(answer.argmax_ids or rows.argmax(-1).flatten().tolist(), dtype=torch.int64).unsqueeze(1)
    length = len(forced)
    judged = compare_prompts(
        baseline=None if ctx.dtype == "float32" else [ctx.goldens["fp32_logits"][position][:length]],
        expected=[ctx.goldens["dtype_logits"][position][:length]],
        target=[rows],
        sampled=[sampled],
        tolerances=ctx.tolerances,
        target_dtype=ctx.dtype,
    )
    verdict, metrics = judged.per_prompt[0], judged.prompt_rows(0)
    hits = [*verdict.guards, *(hit for row in metrics for hit in row.guards)]
    return Judged(metrics, len({(hit.guard, hit.batch, hit.token) for hit in hits}), verdict.verdict)
