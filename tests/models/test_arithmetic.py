"""The training problems, against plain integer arithmetic."""

from __future__ import annotations

import re

import pytest

from accuracy_core.models.arithmetic import final_number, problem, problems


def test_documented_example() -> None:
    assert problem(47, "+", 38) == ("Q: 47+38\nA:", " 7+8=15, 4+3+1=8\n#### 85")
    assert problem(52, "-", 38) == ("Q: 52-38\nA:", " 12-8=4, 5-3-1=1\n#### 14")


@pytest.mark.parametrize("op", ["+", "-"])
def test_every_statement_in_every_answer_is_true(op: str) -> None:
    for a in range(100):
        for b in range(100 if op == "+" else a + 1):
            question, answer = problem(a, op, b)  # type: ignore[arg-type]
            assert question == f"Q: {a}{op}{b}\nA:"
            working, result = answer.split("\n#### ")
            assert int(result) == (a + b if op == "+" else a - b)
            for left, right in re.findall(r"([\d+-]+)=(-?\d+)", working):
                terms = [int(term) for term in re.findall(r"[+-]?\d+", left)]
                assert sum(terms) == int(right), answer


@pytest.mark.parametrize(("a", "op", "b"), [(100, "+", 1), (1, "+", -1), (3, "-", 4), (1, "*", 1)])
def test_problems_outside_the_training_range_are_refused(a: int, op: str, b: int) -> None:
    with pytest.raises(ValueError, match="no such problem"):
        problem(a, op, b)  # type: ignore[arg-type]


def test_split_is_seeded_complete_and_disjoint() -> None:
    train, held = problems(2)
    assert (len(train), len(held)) == (14050, 1000)
    assert len(set(train) | set(held)) == 15050
    assert problems(2) == (train, held)
    assert problems(3)[1] != held


def test_final_number() -> None:
    assert final_number(" 7+8=15\n#### 85") == "85"
    assert final_number("no marker") == "no marker"
