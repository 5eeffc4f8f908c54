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
    known = [request for request in facts.seen if request.finish_reason]
    if not known:
        yield unmeasured("truncation", "the server gave no finish reasons")
        return
    by_task = Counter(request.task for request in known)
    cut = Counter(request.task for request in known if request.finish_reason == "length")
    for task, count in cut.items():
        share = count / by_task[task]
        evidence = f"{task or 'requests'}: {count} of {by_task[task]} generations end at the token limit"
        fix = "raise the task's max_gen_toks (or max_model_len), or give it stop strings"
        if share >= limits().truncated_wrong and by_task[task] >= limits().least_requests:
            yield wrong("truncation", evidence, fix)
        elif share >= limits().truncated_doubtful:
            yield doubtful("truncation", evidence, fix)
