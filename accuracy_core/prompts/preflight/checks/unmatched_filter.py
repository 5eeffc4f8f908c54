"""Does a filter find an answer in any response at all?"""

from __future__ import annotations

from collections.abc import Iterator

from accuracy_core.prompts.preflight.facts import FilterFacts, PreflightFacts
from accuracy_core.prompts.preflight.limits import limits
from accuracy_core.prompts.preflight.registry import doubtful, preflight_check, wrong
from accuracy_core.schemas import Finding


@preflight_check("filters", "requests", "does every filter find answers in the responses?")
def check_filters(facts: PreflightFacts) -> Iterator[Finding]:
    """A filter that never matches scores 0 whatever the model says: the score is about the pattern.

    It is wrong where the pattern does not fit the task's own examples, or where another filter finds right answers in
    the same responses. Else the responses may be the noise of a wrong engine: its numbers must be asked.
    """
    for item in facts.filters:
        if item.samples < limits().least_requests:
            continue
        evidence = f"{item.task}, filter {item.filter!r}: no answer found in {item.unmatched} of {item.samples}"
        fix = "compare the filter's pattern with a response (report, task tab); wrong template or stop strings?"
        elsewhere = max((other.right / other.samples for other in facts.filters if _beside(item, other)), default=0.0)
        if item.unmatched == item.samples and item.matches_examples is False:
            yield wrong("filter", f"{evidence}, and none in the task's own examples", f"correct the pattern; {fix}")
        elif item.unmatched == item.samples and elsewhere >= limits().right_elsewhere:
            yield wrong("filter", f"{evidence}; another filter finds {elsewhere:.0%} right answers in them", fix)
        elif item.unmatched >= limits().unmatched_doubtful * item.samples:
            yield doubtful("filter", evidence, fix)


def _beside(item: FilterFacts, other: FilterFacts) -> bool:
    return other.task == item.task and other.filter != item.filter and other.samples > 0
