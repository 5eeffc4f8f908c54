"""One prompt replayed with the reference's tensors put into the engine: did its rows return to what clean rows show?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from accuracy_core.errors import AssayError, EngineDiedError, NotMeasuredError
from accuracy_core.outcome import Verdict
from accuracy_core.prompts.context import PluginContext
from accuracy_core.prompts.engine_session import read_logits
from accuracy_core.prompts.triage_tree import TriageTree
from accuracy_core.schemas import CaptureSpec, Replacement, ReplacementTrial, ReplayRequest, RowMetrics

#: ratio of a row that equals the reference: its logarithm must stay finite
_SMALLEST = 1e-3


class Injections(Protocol):
    """Reference rows in the target's dtype that can be put into the target."""

    def taps(self, position: int) -> list[str]:
        """Canonical taps that were captured for the prompt at `position` of the context, in order of execution."""
        ...

    def possible(self, tap: str) -> bool:
        """Whether there are rows for `tap`, and a place for them in the engine."""
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


@dataclass(frozen=True)
class Experiment:
    """What a replacement is tried on and by. `wrong`: modules that tensor compare found wrong by themselves."""

    case: Case
    ctx: PluginContext
    injections: Injections
    tree: TriageTree
    wrong: tuple[str, ...] = ()

    @property
    def taps(self) -> list[str]:
        """Canonical taps in order of execution."""
        return self.injections.taps(self.case.position)

    def trial(self, kind: str, tap: str, taps: Sequence[str] = ()) -> ReplacementTrial:
        """Replay with the reference's rows at `taps` (`tap` alone when empty), which are reported as `tap`.

        `healed` is None, with the reason, when that is not possible. Raises EngineDiedError.
        """
        case = self.case
        known = {"kind": kind, "module": tap, "prompt": case.index}
        try:
            replacements = self.injections.replacements(case.position, taps or [tap])
            name = f"confirm-{case.index}-{kind}-{tap}"
            after = _replay(name, case.position, case.forced, self.ctx, replacements)
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
            healed = returned(trial, self.tree)
        if healed is None:
            reason = "this prompt's logits are within noise: there is no error to lose"
            return trial.model_copy(update={"reason": reason})
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


def outdoes(trial: ReplacementTrial, control: ReplacementTrial, tree: TriageTree) -> bool:
    """Did `trial` take clearly more of the error away than `control`, where both brought the rows back?

    A weak fault vanishes in part wherever many reference tensors are put in. Rows that were not off as a whole, but for
    single guards, cannot tell.
    """
    if trial.l2_before <= tree.bounds["healed_ratio"]:
        return False
    left, beside = (max(one.l2_after, 1.0) ** 2 - 1.0 for one in (trial, control))
    return left < beside and left <= tree.bounds["comparable_share"] * beside


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
