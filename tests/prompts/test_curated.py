"""The curated prompts hold what they promise."""

from __future__ import annotations

import pytest
from prompt_fakes import BOS, EOS

from accuracy_core.errors import ConfigurationError
from accuracy_core.prompts.curated import curated_entries, curated_prompts


@pytest.fixture
def prompts(tokenizer):
    return {prompt.label: prompt for prompt in curated_prompts(tokenizer, 240)}


def test_all_kinds_are_there_and_say_why(prompts):
    kinds = ["short", "long", "non-english", "code", "numbers", "repeated", "special", "one-token"]
    assert list(prompts) == kinds == [entry["id"] for entry in curated_entries()]
    assert all(len(prompt.purpose) > 20 for prompt in prompts.values())


def test_long_passes_two_block_boundaries(prompts):
    assert len(prompts["long"].token_ids) > 2 * 32


def test_repeated_repeats_one_unit(prompts):
    ids = prompts["repeated"].token_ids
    assert ids[0] == BOS
    unit = ids[1:4]
    assert ids[1:] == unit * 40


def test_special_tokens_are_in_the_middle(prompts):
    ids = prompts["special"].token_ids
    assert EOS in ids[1:-1]
    assert ids.count(BOS) == 2


def test_one_token_is_one_token(prompts):
    assert len(prompts["one-token"].token_ids) == 1


def test_non_english_has_several_scripts(prompts):
    text = next(entry["text"] for entry in curated_entries() if entry["id"] == "non-english")
    assert {"ü", "東", "П", "م", "न"} <= {"ü" if c in "üÜ" else c for c in text}


def test_every_prompt_fits_and_keeps_its_beginning(tokenizer):
    for prompt in curated_prompts(tokenizer, 12, first_index=5):
        assert 1 <= len(prompt.token_ids) <= 12
        assert prompt.token_ids[0] == BOS
    assert next(iter(curated_prompts(tokenizer, 12, first_index=5))).index == 5


def test_no_room_is_an_error(tokenizer):
    with pytest.raises(ConfigurationError, match="no room"):
        curated_prompts(tokenizer, 0)
