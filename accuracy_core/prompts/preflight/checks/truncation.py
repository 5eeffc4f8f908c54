"""Were answers cut off by the length limit before they were finished?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from accuracy_core.prompts.preflight.facts import PreflightFacts
from accuracy_core.prompts.preflight.limits import limits
from accuracy_core.prompts.preflight.registry import doubtful, preflight_check, unmeasured, wrong
from accuracy_core.schemas import Finding


@preflight_check("truncation", "requests", "were generations cut off by the token limit?")
def check_truncation(facts: PreflightFacts) -> Iterator[Finding]:
    """Wrong where the limit cannot hold the expected answers. Else an engine that never stops looks the same: its
    numbers must be asked, so a run goes on."""
    known = [request for request in facts.seen if request.finish_reason]
    if not known:
        yield unmeasured("truncation", "the server gave no finish reasons, or generated nothing")
        return
    by_task = Counter(request.task for request in known)
    cut = Counter(request.task for request in known if request.finish_reason == "length")
    for task, count in cut.items():
        share = count / by_task[task]
        evidence = f"{task or 'requests'}: {count} of {by_task[task]} generations end at the token limit"
        fits = [request.answer_fits for request in known if request.task == task and request.answer_fits is not None]
        too_short = sum(not fit for fit in fits) >= limits().truncated_wrong * max(len(fits), 1)
        if share >= limits().truncated_wrong and by_task[task] >= limits().least_requests and too_short:
            evidence += f", which is too low for {sum(not fit for fit in fits)} of {len(fits)} expected answers"
            yield wrong("truncation", evidence, "raise max_gen_toks (generation arguments), or max_model_len")
        elif share >= limits().truncated_doubtful:
            yield doubtful(
                "truncation",
                evidence,
                "raise max_gen_toks or give the task stop strings; an engine that never stops may be numerically wrong",
            )
