from __future__ import annotations

import numpy as np
import pytest

from accuracy_core.errors import ConfigurationError
from accuracy_core.evals.selection import select_prompts
from accuracy_core.evals.turn_order import turn_order
from accuracy_core.schemas import DeviatedPrompt


def prompt(task: str, doc_id: int, badness: float = 1.0) -> DeviatedPrompt:
    return DeviatedPrompt(task=task, doc_id=doc_id, prompt="p", badness=badness)


MANY = [prompt("a", doc) for doc in range(50)] + [prompt("b", 0, 0.2), prompt("b", 1, 0.9)] + [prompt("c", 7)]


def test_spread_over_tasks_worst_first() -> None:
    chosen = select_prompts(MANY, 4)
    assert [item.task for item in chosen] == ["a", "b", "c", "a"]
    assert chosen[1].doc_id == 1


def test_reproducible_and_not_the_first_documents() -> None:
    assert select_prompts(MANY, 20) == select_prompts(list(reversed(MANY[:50])) + MANY[50:], 20)
    assert [item.doc_id for item in select_prompts(MANY[:50], 5)] != [0, 1, 2, 3, 4]
    assert select_prompts(MANY[:50], 5) != select_prompts(MANY[:50], 5, seed=1)


def test_cap_and_model_errors_last() -> None:
    assert len(select_prompts(MANY, 1000)) == len(MANY)
    errors = [prompt("a", 99), prompt("b", 98)]
    assert [item.doc_id for item in select_prompts([prompt("b", 3)], 2, model_errors=errors)] == [3, 99]
    assert select_prompts([], 3) == []
    with pytest.raises(ConfigurationError, match="max_prompts 0"):
        select_prompts(MANY, 0)


def test_taking_turns_keeps_everything() -> None:
    rng = np.random.default_rng(0)
    tasks = [f"t{number}" for number in rng.integers(0, 5, 500)]
    order = turn_order(tasks, rng.integers(0, 40, 500), rng.random(500).round(1))
    assert sorted(order) == list(range(500))
    assert {tasks[index] for index in order[:5]} == set(tasks)
    assert len(turn_order([], np.zeros(0), np.zeros(0))) == 0


def test_infinitely_bad_is_first() -> None:
    order = turn_order(["a"] * 4, np.arange(4), np.array([0.5, np.inf, 1.0, 0.7]))
    assert list(order) == [1, 2, 3, 0]
