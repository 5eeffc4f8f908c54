"""Does a filter find an answer in any response at all?"""

from __future__ import annotations

from collections.abc import Iterator

from accuracy_core.prompts.preflight.facts import PreflightFacts
from accuracy_core.prompts.preflight.limits import limits
from accuracy_core.prompts.preflight.registry import doubtful, preflight_check, wrong
from accuracy_core.schemas import Finding


@preflight_check("filters", "requests", "does every filter find answers in the responses?")
def check_filters(facts: PreflightFacts) -> Iterator[Finding]:
    """A filter that never matches scores 0 whatever the model says: the score is about the pattern."""
    for item in facts.filters:
        if item.samples < limits().least_requests:
            continue
        evidence = f"{item.task}, filter {item.filter!r}: no answer found in {item.unmatched} of {item.samples}"
        fix = "compare the filter's pattern with a response (report, task tab); wrong template or stop strings?"
        if item.unmatched == item.samples:
            yield wrong("filter", evidence, fix)
        elif item.unmatched >= limits().unmatched_doubtful * item.samples:
            yield doubtful("filter", evidence, fix)
