"""Three-way logit validation of all prompts: HF FP32, HF in the target's dtype, and the target, teacher-forced."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from accuracy_core.errors import InputMismatchError, NotMeasuredError, ReferenceError_
from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.prompts.context import PluginContext
from accuracy_core.prompts.engine_checks import FREE_TOKENS, greedy_findings, prompt_findings
from accuracy_core.prompts.engine_session import read_logits
from accuracy_core.prompts.plugin import PromptPlugin
from accuracy_core.prompts.plugins.logit_artifacts import save_artifacts
from accuracy_core.prompts.tokens import decode_tokens
from accuracy_core.prompts.triage import Location
from accuracy_core.schemas import (
    CaptureSpec,
    Finding,
    GuardHit,
    PluginStatus,
    PromptResult,
    ReplayRequest,
    ReplayResult,
    RouteResult,
    Severity,
)

if TYPE_CHECKING:
    import torch

    from accuracy_core.logits.result import MultiPromptValidationResult


_TWO_WAY_ONLY = Finding(
    check="three_way",
    severity=Severity.INFO,
    evidence="float32 target: judged two-way by the static limits, since there is no dtype noise to compare with",
    outcome=Outcome.NOT_MEASURED,
)


#: FP32 itself as the expected side, as the documented on-device flow does: shown beside the verdict, no way to a pass
FP32_TWO_WAY = "fp32_two_way"


@dataclass(frozen=True)
class _Side:
    """One prompt's rows. `fp32`, `expected` and `target` are (tokens, batch 1, vocab); `sampled` (tokens, 1)."""

    position: int
    fp32: torch.Tensor
    expected: torch.Tensor
    forced: list[int]
    target: torch.Tensor | None = None
    sampled: torch.Tensor | None = None
    route: str | None = None


class LogitValPlugin(PromptPlugin):
    """Logits of every prompt and every token against the goldens.

    The target is forced along the FP32 reference's own greedy tokens, so that an early flip does not turn all later
    rows into a comparison of different texts.
    """

    name: ClassVar[str] = "logit_validation"

    def run(self, ctx: PluginContext) -> dict[str, Any]:
        """`passed`, `status` (PluginStatus), `prompts` (a PromptResult each), `location` (phase over all prompts),
        `findings`, `logits` (rows per prompt index).

        Prompts whose golden or replay is unusable are recorded as errors. Raises NotMeasuredError without engine or
        goldens, EngineDiedError when the engine goes.
        """
        if ctx.engine is None or ctx.goldens is None:
            raise NotMeasuredError("logit validation needs an engine and goldens")
        errors: dict[int, str] = {}
        sides = [side for i in range(len(ctx.prompts)) if (side := _golden_side(ctx, i, errors)) is not None]
        findings = [] if _three_way(ctx) else [_TWO_WAY_ONLY]
        sides = _replay(ctx, sides, errors, findings)
        results, status, location = _compare(ctx, sides, errors)
        return {
            "passed": None if status.verdict is None else status.verdict is Verdict.PASS and not status.errors,
            "status": status,
            "prompts": results,
            "location": location,
            "findings": findings,
            "logits": {ctx.prepared[side.position].index: (side.fp32, side.expected, side.target) for side in sides},
        }

    def save(self, ctx: PluginContext, results: dict[str, Any]) -> None:
        """`prompt_<i>/{prompt_result.json,validation_log.txt,logit_validation/…}` per prompt, and `tolerances.json`."""
        from accuracy_core.numerics import default_tolerances

        tolerances = ctx.tolerances or default_tolerances()
        ctx.output_dir.write(ctx.output_dir.prompt_analysis / "tolerances.json", tolerances)
        for result in results["prompts"]:
            save_artifacts(ctx.output_dir, result, results["logits"].get(result.index), tolerances)


def _golden_side(ctx: PluginContext, position: int, errors: dict[int, str]) -> _Side | None:
    import torch

    assert ctx.goldens is not None
    try:
        fp32 = ctx.goldens["fp32_logits"][position]
        expected = ctx.goldens["dtype_logits"][position]
        for name, tensor in (("fp32_logits", fp32), ("dtype_logits", expected)):
            if tensor.ndim != 3 or tensor.shape[0] < 1 or tensor.shape[1] != 1:
                raise InputMismatchError(f"golden {name} is {tuple(tensor.shape)}, not (tokens, 1, vocab)")
            if bool(torch.isnan(tensor).any()):
                raise ReferenceError_(f"golden {name} holds NaN: the reference is invalid, nothing can be judged")
        ids = ctx.goldens.get("input_ids")
        if ids is not None and [int(token) for token in ids[position][0]] != list(ctx.prompts[position]):
            raise InputMismatchError("the golden belongs to another prompt: its token ids differ")
        if fp32.shape != expected.shape:
            raise InputMismatchError(f"goldens disagree: {tuple(fp32.shape)} and {tuple(expected.shape)}")
    except (InputMismatchError, ReferenceError_, IndexError, KeyError) as error:
        errors[position] = error.message if isinstance(error, InputMismatchError | ReferenceError_) else repr(error)
        return None
    forced = fp32[: ctx.output_length, 0].argmax(dim=-1).tolist()
    return _Side(position, fp32[: ctx.output_length], expected[: ctx.output_length], forced)


def _replay(ctx: PluginContext, sides: list[_Side], errors: dict[int, str], findings: list[Finding]) -> list[_Side]:
    """The sides with the target's rows. What the engine did otherwise than it was asked goes into `findings`."""
    import torch

    assert ctx.engine is not None
    if not sides:
        return []
    requests = [
        ReplayRequest(
            request_id=f"prompt-{ctx.prepared[side.position].index}",
            prompt_token_ids=list(ctx.prompts[side.position]),
            forced_token_ids=side.forced,
            capture=CaptureSpec(logits=True),
        )
        for side in sides
    ]
    answers = {r.request_id: r for r in ctx.engine.replay(requests, lambda done, n: ctx.progress("replay", done, n))}
    findings += prompt_findings(requests, list(answers.values()))
    findings += _greedy(ctx, sides[0])
    done = []
    for side, request in zip(sides, requests, strict=True):
        answer = answers.get(request.request_id)
        problem = _problem(answer, side)
        if problem or answer is None:
            errors[side.position] = problem
            continue
        rows = read_logits(answer)
        sampled = torch.tensor(answer.argmax_ids or rows.argmax(dim=-1).tolist(), dtype=torch.int64)
        done.append(replace(side, target=rows.unsqueeze(1), sampled=sampled.unsqueeze(1), route=answer.route))
    return done


def _greedy(ctx: PluginContext, side: _Side) -> list[Finding]:
    """Whether the engine's sampler takes the best token, seen on one prompt."""
    assert ctx.engine is not None
    count = min(FREE_TOKENS, len(side.forced))
    name = f"prompt-{ctx.prepared[side.position].index}-greedy"
    return greedy_findings(ctx.engine, ctx.prompts[side.position], count, name=name)


def _problem(answer: ReplayResult | None, side: _Side) -> str:
    """Why this answer cannot be compared; '' when it can. Missing rows at the end are left to the guards."""
    if answer is None:
        return "the engine did not answer this prompt"
    if answer.error:
        return answer.error
    if answer.token_ids != side.forced[: len(answer.token_ids)]:
        return "the engine did not follow the forced tokens: its rows belong to another text"
    return ""


def _compare(
    ctx: PluginContext, sides: list[_Side], errors: dict[int, str]
) -> tuple[list[PromptResult], PluginStatus, Location]:
    """Judge all prompts together: the aggregates are over all of them."""
    from accuracy_core.logits.compare import compare_prompts

    index_of = {order: ctx.prepared[side.position].index for order, side in enumerate(sides)}
    by_position: dict[int, PromptResult] = {}
    status = PluginStatus(plugin=LogitValPlugin.name, outcome=Outcome.NOT_MEASURED)
    location = Location()
    if sides:
        judged = compare_prompts(
            baseline=[side.fp32 for side in sides] if _three_way(ctx) else None,
            expected=[side.expected for side in sides],
            target=[side.target for side in sides if side.target is not None],
            sampled=[side.sampled for side in sides],
            tolerances=ctx.tolerances,
            vocab_size=_vocab_size(ctx.tokenizer, sides),
            target_dtype=ctx.dtype,
        )
        for order, side in enumerate(sides):
            by_position[side.position] = _prompt_result(ctx, side, judged, order, index_of)
        status = PluginStatus(
            plugin=LogitValPlugin.name,
            verdict=judged.verdict,
            routes=judged.routes + ([_fp32_two_way(ctx, sides)] if _three_way(ctx) else []),
            worst=_renumber(judged.worst_guard, index_of) if judged.worst_guard else None,
            aggregates=judged.aggregates,
            per_prompt={str(result.index): result.verdict for result in by_position.values()},
        )
        location = Location(judged.phase, judged.first_bad_token)
    results = [by_position.get(i) or _errored(ctx, i, errors.get(i, "not compared")) for i in range(len(ctx.prompts))]
    keyed = {str(ctx.prepared[position].index): text for position, text in errors.items()}
    return results, status.model_copy(update={"errors": keyed}), location


def _fp32_two_way(ctx: PluginContext, sides: list[_Side]) -> RouteResult:
    """The static limits between the target and FP32 itself: dtype noise counts as error here."""
    from accuracy_core.logits.compare import compare_prompts

    judged = compare_prompts(
        baseline=None,
        expected=[side.fp32 for side in sides],
        target=[side.target for side in sides if side.target is not None],
        tolerances=ctx.tolerances,
        vocab_size=_vocab_size(ctx.tokenizer, sides),
        target_dtype=ctx.dtype,
    )
    (static,) = (route for route in judged.routes if route.route == "two_way")
    return static.model_copy(update={"route": FP32_TWO_WAY, "informative": True})


def _prompt_result(
    ctx: PluginContext, side: _Side, judged: MultiPromptValidationResult, order: int, index_of: dict[int, int]
) -> PromptResult:
    prompt = ctx.prepared[side.position]
    own = judged.per_prompt[order]
    rows = [
        row.model_copy(
            update={"prompt": prompt.index, "guards": [_renumber(hit, index_of) for hit in row.guards]},
        )
        for row in judged.prompt_rows(order)
    ]
    keys = getattr(ctx.goldens, "prompt_keys", None)
    return PromptResult(
        index=prompt.index,
        plugin=LogitValPlugin.name,
        prompt=prompt.text,
        prompt_token_ids=list(prompt.token_ids),
        token_ids=side.forced,
        tokens=decode_tokens(ctx.tokenizer, side.forced),
        verdict=own.verdict,
        phase=own.phase,
        first_bad_token=own.first_bad_token,
        routes=[
            RouteResult(
                route="two_way",
                passed=own.two_way_passed,
                value=sum(row.two_way_passed for row in rows) / max(len(rows), 1),
                threshold=1.0,
                detail="share of this prompt's rows within the static limits",
            )
        ],
        guards=[_renumber(hit, index_of) for hit in own.guards],
        rows=rows,
        golden_key=keys[side.position] if keys else None,
        engine_route=side.route,
    )


def _renumber(hit: GuardHit, index_of: dict[int, int]) -> GuardHit:
    """The comparison counts the prompts it was given; the run directory has numbers of its own (-1: the whole run)."""
    return hit.model_copy(update={"prompt": index_of.get(hit.prompt, hit.prompt)})


def _three_way(ctx: PluginContext) -> bool:
    """A float32 target has no dtype noise to be measured by: FP32 is baseline and expected side in one."""
    return ctx.dtype != "float32"


def _vocab_size(tokenizer: Any, sides: list[_Side]) -> int | None:
    """Ids that the tokenizer can produce: columns beyond them are padding, and must not win."""
    if tokenizer is None or not hasattr(tokenizer, "get_vocab"):
        return None
    width = min(side.fp32.shape[2] for side in sides)
    return min(max(tokenizer.get_vocab().values()) + 1, width)


def _errored(ctx: PluginContext, position: int, text: str) -> PromptResult:
    prompt = ctx.prepared[position]
    return PromptResult(
        index=prompt.index,
        plugin=LogitValPlugin.name,
        prompt=prompt.text,
        prompt_token_ids=list(prompt.token_ids),
        outcome=Outcome.NOT_MEASURED,
        error=text,
    )
