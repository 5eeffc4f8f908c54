"""Writes the data of the bundled tasks: `python -m accuracy_core.evals.tasks.make_data`.

Every document is held out from the embedded model's training (same generator, same seed), except the few-shot examples.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from accuracy_core.models.arithmetic import Problem, problem, problems

#: seed of the shuffle that the embedded model was trained with
MODEL_SEED = 2
N_ARITH, N_FEWSHOT, N_ADD, N_SUB = 100, 10, 40, 20


def generate(rng_seed: int = 7) -> dict[str, list[dict[str, Any]]]:
    """File name -> rows. Deterministic."""
    train, held = problems(MODEL_SEED)
    rng = random.Random(rng_seed)
    rest = held[N_ARITH:]  # no problem serves two tasks
    return {
        "arith_test.jsonl": [_question(p) for p in held[:N_ARITH]],
        "arith_fewshot.jsonl": [_question(p) for p in train[:N_FEWSHOT]],
        "mc_add.jsonl": [_choices(p, rng) for p in rest if p[1] == "+"][:N_ADD],
        "mc_sub.jsonl": [_choices(p, rng) for p in rest if p[1] == "-"][:N_SUB],
    }


def write(folder: Path) -> None:
    """Write the four files to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in generate().items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _question(p: Problem) -> dict[str, Any]:
    _, answer = problem(*p)
    return {"question": f"{p[0]}{p[1]}{p[2]}", "answer": answer.strip(), "category": "add" if p[1] == "+" else "sub"}


def _choices(p: Problem, rng: random.Random) -> dict[str, Any]:
    """The right worked answer among three with one slip each: in the ones, in the carry or borrow, in the tens."""
    _, answer = problem(*p)
    right = answer.strip()
    choices = [right, *_slips(p, rng)]
    rng.shuffle(choices)
    return {"question": f"{p[0]}{p[1]}{p[2]}", "choices": choices, "gold": choices.index(right)}


def _slips(p: Problem, rng: random.Random) -> list[str]:
    a, op, b = p
    (tens_a, ones_a), (tens_b, ones_b) = divmod(a, 10), divmod(b, 10)
    sign = 1 if op == "+" else -1
    over = (ones_a + ones_b) // 10 if op == "+" else int(ones_a < ones_b)  # the carry, or the borrow
    lent = ones_a if op == "+" else ones_a + 10 * over
    ones = lent + sign * ones_b

    def worked(ones: int, over: int, slip: int = 0) -> str:
        tens = tens_a + sign * tens_b + sign * over + slip
        number = 10 * tens + ones % 10
        return f"{lent}{op}{ones_b}={ones}, {tens_a}{op}{tens_b}{op}{over}={tens}\n#### {number}"

    tens = tens_a + sign * (tens_b + over)
    wrong_ones = ones + (rng.choice((-1, 1)) if 0 < ones < 9 else 1 if ones == 0 else -1)
    wrong_over = 1 - over if sign > 0 or tens_a - tens_b - (1 - over) >= 0 else over
    return [
        worked(wrong_ones, wrong_ones // 10 if op == "+" else over),
        worked(ones, wrong_over, 0 if wrong_over != over else 2),
        worked(ones, over, rng.choice((-1, 1)) if tens > 0 else 1),
    ]


if __name__ == "__main__":
    write(Path(__file__).parent)
