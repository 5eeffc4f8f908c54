"""Prompts of a selftest: problems of the bundled model's kind, long enough for windows and block tables to matter."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

from accuracy_core.models.resolve import embedded_model
from accuracy_core.models.tiny_tokenizer import build_tokenizer

PROMPTS = 2
OUTPUT_LENGTH = 10
#: tokens: more than a KV block of 32 and a window of 16, and with the output still within the models' 256
LEAST, MOST = 40, 72


@cache
def _problems() -> list[str]:
    lines = (embedded_model() / "test.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [f"Q: {row['question']}\nA: {row['answer']}" for row in rows]


@cache
def tokenizer() -> Any:
    return build_tokenizer()


def selftest_prompts(seed: int) -> list[list[int]]:
    """Token ids of `PROMPTS` prompts: solved problems and the question of one more, `LEAST` to `MOST` tokens."""
    chosen = random.Random(seed)
    prompts: list[list[int]] = []
    while len(prompts) < PROMPTS:
        problems = chosen.sample(_problems(), 3)
        text = "\n".join([*problems[:2], problems[2].split("\nA:")[0] + "\nA:"])
        ids = list(tokenizer()(text).input_ids)
        ids = [ids[0], *ids[1:][-(MOST - 1) :]]
        if len(ids) >= LEAST:
            prompts.append(ids)
    return prompts
