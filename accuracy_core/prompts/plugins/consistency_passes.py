"""The A-A-B-B passes of the consistency checks through one engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from accuracy_core.consistency.judge import Replays, judge_repeat, judge_way, unmeasured
from accuracy_core.consistency.limits import ConsistencyLimits
from accuracy_core.consistency.ways import NEUTRAL, ServingWay
from accuracy_core.engines.protocol import ConditionalEngine
from accuracy_core.prompts.engine_session import read_logits
from accuracy_core.prompts.plugins.consistency_subjects import Subject
from accuracy_core.prompts.plugins.kv_target import remove_files
from accuracy_core.schemas import (
    ConsistencyCheck,
    ReplayConditions,
    ReplayConduct,
    ReplayRequest,
    ReplayResult,
)

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Answer:
    """Rows float32 (tokens, vocab) of one prompt in one pass, or why there are none."""

    rows: torch.Tensor | None
    tokens: tuple[int, ...] = ()
    conduct: ReplayConduct | None = None
    problem: str = ""


def check_engine(
    engine: ConditionalEngine,
    subjects: Sequence[Subject],
    ways: Sequence[ServingWay],
    dtype: str,
    limits: ConsistencyLimits,
    progress: Callable[[int, int], None],
    tokens: int,
) -> list[ConsistencyCheck]:
    """Two neutral passes over all prompts, then two passes per way of serving; a verdict for repeating and each way.

    A subject without tokens to force follows the first `tokens` that the engine generates. A check counts only prompts
    whose conduct proves that the way was taken in both of its passes and in neither neutral one; the others are named
    in `left_out`. Raises EngineDiedError when the engine goes.
    """
    count, done = 2 + 2 * len(ways), 0

    def run(who: Sequence[Subject], name: str, conditions: ReplayConditions) -> list[Answer]:
        nonlocal done
        found = _pass(engine, who, name, conditions, tokens)
        done += 1
        progress(done, count)
        return found

    first = run(subjects, "a1", NEUTRAL.model_copy(update={"forget_prefixes": True}))
    followed = [replace(one, forced=one.forced or answer.tokens) for one, answer in zip(subjects, first, strict=True)]
    neutral = list(zip(first, run(followed, "a2", NEUTRAL), strict=True))
    checks = [_repeat(followed, neutral, dtype)]
    for way in ways:
        if not getattr(engine.capabilities, way.capability):
            checks.append(unmeasured(way.kind, _lack(engine, followed[:1], way, tokens), lacking=True))
            done += 2
            continue
        passes = [run(followed, f"{way.kind.value}-b{number}", way.conditions) for number in (1, 2)]
        under = list(zip(*passes, strict=True))
        checks.append(_judged(way, followed, neutral, under, dtype, limits))
    return checks


def _pass(
    engine: ConditionalEngine, subjects: Sequence[Subject], name: str, conditions: ReplayConditions, tokens: int
) -> list[Answer]:
    requests = [
        ReplayRequest(
            request_id=f"consistency-{name}-{place}",
            prompt_token_ids=list(subject.prompt),
            forced_token_ids=list(subject.forced),
            max_new_tokens=None if subject.forced else tokens,
        )
        for place, subject in enumerate(subjects)
    ]
    results = engine.replay_under(requests, conditions)
    return [_answer(result, subject) for result, subject in zip(results, subjects, strict=True)]


def _lack(engine: ConditionalEngine, subjects: Sequence[Subject], way: ServingWay, tokens: int) -> str:
    """Why the engine lacks the capability for `way`: it says so when it is asked."""
    answers = _pass(engine, subjects, way.kind.value, way.conditions, tokens)
    told = [answer.problem.removeprefix("not measured: ") for answer in answers]
    return next(filter(None, told), f"engine {engine.name} has no capability `{way.capability}`")


def _answer(result: ReplayResult, subject: Subject) -> Answer:
    if result.error:
        return Answer(None, problem=result.error)
    try:
        rows = read_logits(result)
    finally:
        remove_files(result)  # eight passes of long prompts would fill the memory that scratch is in
    if subject.forced and tuple(result.token_ids) != subject.forced[: len(result.token_ids)]:
        return Answer(None, problem="the engine did not follow the forced tokens: its rows belong to another text")
    return Answer(rows, tuple(result.token_ids), result.conduct)


def _repeat(
    subjects: Sequence[Subject],
    neutral: Sequence[tuple[Answer, Answer]],
    dtype: str,
) -> ConsistencyCheck:
    replays, left_out = [], {}
    for subject, pair in zip(subjects, neutral, strict=True):
        problem = _problem(pair)
        if problem:
            left_out[subject.name] = problem
        else:
            replays.append(_replays(subject, pair, pair))
    return _complete(judge_repeat(replays, dtype), left_out)


def _judged(
    way: ServingWay,
    subjects: Sequence[Subject],
    neutral: Sequence[tuple[Answer, Answer]],
    under: Sequence[tuple[Answer, Answer]],
    dtype: str,
    limits: ConsistencyLimits,
) -> ConsistencyCheck:
    replays, left_out = [], {}
    for subject, before, after in zip(subjects, neutral, under, strict=True):
        problem = _problem((*before, *after)) or _conduct_problem(way, subject, before, after)
        if problem:
            left_out[subject.name] = problem
        else:
            replays.append(_replays(subject, before, after))
    return _complete(judge_way(way.kind, replays, dtype, limits), left_out)


def _problem(answers: Sequence[Answer]) -> str:
    return next((answer.problem for answer in answers if answer.rows is None), "")


def _conduct_problem(way: ServingWay, subject: Subject, before: Sequence[Answer], after: Sequence[Answer]) -> str:
    """Why this prompt proves nothing about `way`; '' when it does."""
    conducts = [answer.conduct for answer in (*before, *after)]
    if any(conduct is None for conduct in conducts):
        return "the engine does not tell how it ran the request"
    taken = [way.took_place(conduct) for conduct in conducts if conduct is not None]
    if any(taken[: len(before)]):
        return f"{way.title} took place though it was not asked for: there is nothing to compare with"
    if not all(taken[len(before) :]):
        return f"{way.absent} ({len(subject.prompt)} prompt tokens)"
    return ""


def _replays(subject: Subject, before: tuple[Answer, Answer], after: tuple[Answer, Answer]) -> Replays:
    a1, a2, b1, b2 = (answer.rows for answer in (*before, *after))
    assert a1 is not None
    assert a2 is not None
    assert b1 is not None
    assert b2 is not None
    return Replays(subject.index, subject.label, (a1, a2), (b1, b2), subject.fp32, subject.expected, after[0].conduct)


def _complete(check: ConsistencyCheck, left_out: dict[str, str]) -> ConsistencyCheck:
    """With the prompts that are not in it; where that is all of them, their reasons are the check's."""
    update: dict[str, object] = {"left_out": left_out}
    if check.verdict is None and not check.reason:
        update["reason"] = "; ".join(dict.fromkeys(left_out.values())) or "there is no prompt"
    return check.model_copy(update=update)
