"""No false alarm on clean runs of any shape, and no run missed with one winner lowered beyond noise."""

from __future__ import annotations

import pytest

from accuracy_core.logits import compare_prompts
from accuracy_core.outcome import Verdict

from .shared_cases import load

runs = load("clean_runs")


def false_alarms_and_misses(seeds: range, elements: int) -> tuple[list[str], list[str]]:
    alarms, misses = [], []
    for seed in seeds:
        run = runs.clean_run(seed, elements)
        result = compare_prompts(run.baseline, run.expected, run.target)
        if result.verdict is not Verdict.PASS:
            alarms.append(f"{run.label}: {result.routes} {result.guards}")
        broken = runs.winner_lowered(run, seed)
        result = compare_prompts(broken.baseline, broken.expected, broken.target)
        if result.passed:
            misses.append(broken.label)
    return alarms, misses


def test_a_few_clean_runs() -> None:
    assert false_alarms_and_misses(range(1000, 1016), 200_000) == ([], [])


@pytest.mark.slow
def test_two_hundred_clean_runs() -> None:
    assert false_alarms_and_misses(range(200), 1_500_000) == ([], [])
