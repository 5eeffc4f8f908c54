"""The shipped checkpoint loads, and is neither perfect nor useless: both right and wrong samples exist."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from accuracy_core.models import embedded_model
from accuracy_core.models.arithmetic import problem, problems
from accuracy_core.models.tiny_tokenizer import BOS_ID, build_tokenizer
from accuracy_core.models.train_tiny import IGNORED, SEED, encode, exact_match, learning_rate_factor


def held_out() -> list[dict[str, str]]:
    return [json.loads(line) for line in (embedded_model() / "test.jsonl").read_text().splitlines()]


def test_shipped_problems_were_held_out() -> None:
    expected = []
    for row in problems(SEED)[1]:
        question, answer = problem(*row)
        expected.append({"question": question.removeprefix("Q: ").removesuffix("\nA:"), "answer": answer.strip()})
    assert held_out() == expected


def test_tokenizer_round_trip_and_bos() -> None:
    tokenizer = build_tokenizer()
    text = "Q: 47+38\nA: é 漢\t"
    ids = tokenizer(text).input_ids
    assert ids[0] == BOS_ID
    assert ids.count(BOS_ID) == 1
    assert tokenizer.decode(ids[1:]) == text


def test_shipped_tokenizer_is_the_built_one() -> None:
    from transformers import AutoTokenizer

    shipped, built = AutoTokenizer.from_pretrained(embedded_model()), build_tokenizer()
    text = problem(47, "+", 38)[0]
    assert shipped(text).input_ids == built(text).input_ids
    assert shipped.chat_template == built.chat_template
    rendered = shipped.apply_chat_template([{"role": "user", "content": "47+38"}], tokenize=False)
    assert rendered == "<s>Q: 47+38\nA:"


def test_only_the_answer_is_learnt() -> None:
    tokenizer = build_tokenizer()
    ids, labels = encode([(47, "+", 38), (1, "-", 1)], tokenizer)
    assert ids.shape == labels.shape
    question, answer = problem(47, "+", 38)
    learnt = labels[0][labels[0] != IGNORED].tolist()
    assert learnt == [*tokenizer(answer, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
    assert (labels[0][: len(tokenizer(question).input_ids)] == IGNORED).all()


def test_learning_rate_warms_up_and_decays() -> None:
    assert learning_rate_factor(0, 140) == pytest.approx(1 / 20)
    assert learning_rate_factor(140, 140) == pytest.approx(0.02)
    assert max(learning_rate_factor(step, 140) for step in range(140)) <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_shipped_model_is_right_about_nine_times_in_ten(dtype: torch.dtype) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(embedded_model(), dtype=dtype)
    score = exact_match(model, AutoTokenizer.from_pretrained(embedded_model()), problems(SEED)[1][:300])
    assert 0.75 < score < 0.99


def test_checkpoint_is_small() -> None:
    assert sum(Path(file).stat().st_size for file in embedded_model().iterdir()) < 1.6e6
