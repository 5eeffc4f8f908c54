"""Whether the engine ran what it was asked to run, and chose what its own logits say: checks that need no reference."""

from __future__ import annotations

from collections.abc import Sequence

from accuracy_core.engines.protocol import TargetEngine
from accuracy_core.outcome import Outcome
from accuracy_core.schemas import Finding, ReplayRequest, ReplayResult, Severity

PROMPT_IDS = "prompt_ids"
GREEDY = "greedy_choice"
#: tokens generated to see what the sampler does
FREE_TOKENS = 4


def prompt_findings(requests: Sequence[ReplayRequest], results: Sequence[ReplayResult]) -> list[Finding]:
    """A finding for the first request whose prompt the engine's model saw otherwise than it was sent.

    Results that do not say what was seen are skipped.
    """
    answers = {result.request_id: result for result in results}
    for request in requests:
        answer = answers.get(request.request_id)
        if answer is None or not answer.seen_prompt_ids or answer.seen_prompt_ids == request.prompt_token_ids:
            continue
        return [
            Finding(
                check=PROMPT_IDS,
                severity=Severity.ERROR,
                outcome=Outcome.CONFIGURATION,
                evidence=_difference(request.prompt_token_ids, answer.seen_prompt_ids),
                fix="tokenise once: a template or the engine adds special tokens to ids that have them already",
            )
        ]
    return []


def _difference(sent: Sequence[int], seen: Sequence[int]) -> str:
    extra = len(seen) - len(sent)
    if extra > 0 and list(seen[extra:]) == list(sent):
        return f"the engine put {list(seen[:extra])} in front of the prompt: {len(sent)} ids sent, {len(seen)} seen"
    place = _first_different(sent, seen)
    return f"the engine saw other ids than were sent: {len(sent)} sent, {len(seen)} seen, first different at {place}"


def _first_different(left: Sequence[int], right: Sequence[int]) -> int:
    """Index of the first difference; the shorter length when there is none before that."""
    common = min(len(left), len(right))
    return next((index for index in range(common) if left[index] != right[index]), common)


def greedy_findings(
    engine: TargetEngine, prompt: Sequence[int], count: int = FREE_TOKENS, *, name: str = "greedy-check"
) -> list[Finding]:
    """A finding when the engine, asked for greedy decoding, emits another token than the argmax of its own row.

    One short free generation, as request `name`; nothing is found where the engine cannot do it or records no rows.
    """
    request = ReplayRequest(request_id=name, prompt_token_ids=list(prompt), max_new_tokens=count)
    answer = engine.replay([request])[0]
    if answer.error or len(answer.argmax_ids) != len(answer.token_ids):
        return []
    other = [step for step, token in enumerate(answer.token_ids) if token != answer.argmax_ids[step]]
    if not other:
        return []
    step = other[0]
    return [
        Finding(
            check=GREEDY,
            severity=Severity.ERROR,
            outcome=Outcome.CONFIGURATION,
            evidence=f"asked for greedy decoding, the engine emitted token {answer.token_ids[step]} at step {step} "
            f"where its own logits say {answer.argmax_ids[step]} ({len(other)} of {count} steps)",
            fix="look for sampling defaults (generation_config.json, server settings) that override temperature 0",
        )
    ]
