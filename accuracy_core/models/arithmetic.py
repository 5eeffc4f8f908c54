"""The arithmetic that the embedded model is trained on: worked sums and differences, shaped like gsm8k."""

from __future__ import annotations

import random
from typing import Literal

Operator = Literal["+", "-"]
#: first operand, operator, second operand; both operands in 0..99, and no negative differences
Problem = tuple[int, Operator, int]


def problem(a: int, op: Operator, b: int) -> tuple[str, str]:
    """Question and answer texts, e.g. `("Q: 47+38\\nA:", " 7+8=15, 4+3+1=8\\n#### 85")`.

    The working goes digit by digit with carry or borrow, so an answer has about 24 tokens and room to diverge in.
    Raises ValueError for operands that the model has never seen.
    """
    if op not in ("+", "-") or not (0 <= a < 100 and 0 <= b < 100) or (op == "-" and b > a):
        raise ValueError(f"no such problem: {a}{op}{b}; operands are 0 to 99 and differences not negative")
    tens_a, ones_a = divmod(a, 10)
    tens_b, ones_b = divmod(b, 10)
    if op == "+":
        result, ones = a + b, ones_a + ones_b
        carry = ones // 10
        working = f"{ones_a}+{ones_b}={ones}, {tens_a}+{tens_b}+{carry}={tens_a + tens_b + carry}"
    else:
        result, borrow = a - b, int(ones_a < ones_b)
        lent = ones_a + 10 * borrow
        working = f"{lent}-{ones_b}={lent - ones_b}, {tens_a}-{tens_b}-{borrow}={tens_a - tens_b - borrow}"
    return f"Q: {a}{op}{b}\nA:", f" {working}\n#### {result}"


def problems(seed: int, held: int = 1000) -> tuple[list[Problem], list[Problem]]:
    """All 15,050 problems in a seeded order, as (training problems, `held` held-out problems)."""
    everything: list[Problem] = [(a, "+", b) for a in range(100) for b in range(100)]
    everything += [(a, "-", b) for a in range(100) for b in range(a + 1)]
    random.Random(seed).shuffle(everything)
    return everything[held:], everything[:held]


def final_number(text: str) -> str:
    """What stands after the last `#### `: the part of an answer that is scored."""
    return text.split("#### ")[-1]
