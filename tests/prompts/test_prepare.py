"""Prompts of every kind become token ids, and bad ones are refused before any work."""

from __future__ import annotations

import pytest
from prompt_fakes import BOS, EOS, FakeTokenizer

from accuracy_core.errors import ConfigurationError
from accuracy_core.prompts.prepare import prepare_prompts
from accuracy_core.schemas import DeviatedPrompt, DeviatedPrompts


def prepare(prompts, tokenizer, **more):
    return prepare_prompts(prompts, tokenizer, **{"output_length": 4, "max_model_len": 64, **more})


def test_texts_get_the_tokenizers_special_tokens(tokenizer):
    done = prepare(["ab", "c"], tokenizer)
    assert done.token_ids() == [[BOS, 3 + ord("a"), 3 + ord("b")], [BOS, 3 + ord("c")]]
    assert [prompt.index for prompt in done.prompts] == [0, 1]
    assert not done.curated


def test_a_rendered_chat_text_gets_no_second_bos(tokenizer):
    assert prepare(["<s>hi"], tokenizer).token_ids()[0].count(BOS) == 1


def test_token_ids_are_taken_as_they_are(tokenizer):
    done = prepare([[5, 6, EOS, 7]], tokenizer)
    assert done.token_ids() == [[5, 6, EOS, 7]]
    assert done.prompts[0].text == FakeTokenizer().decode([5, 6, EOS, 7])


@pytest.mark.parametrize("kind", ["server ids", "text", "chat"])
def test_a_deviated_prompt_gives_what_the_server_saw(tokenizer, kind):
    base = {"task": "t", "doc_id": 9, "prompt": "ab"}
    if kind == "server ids":
        item, want = DeviatedPrompt(**base, token_ids=[7, 8]), [7, 8]
    elif kind == "text":
        item, want = DeviatedPrompt(**base), [BOS, 3 + ord("a"), 3 + ord("b")]
    else:
        item = DeviatedPrompt(**base, kind="chat", messages=[{"role": "user", "content": "x"}])
        want = [BOS, *(3 + ord(c) for c in "[user]x[assistant]")]
    prompt = prepare([item], tokenizer).prompts[0]
    assert prompt.token_ids == want
    assert (prompt.label, prompt.task, prompt.doc_id) == ("t #9", "t", 9)
    assert prompt.ids_from_server is (kind == "server ids")


def test_chat_without_a_template_is_a_configuration_error(tokenizer):
    tokenizer.chat_template = None
    item = DeviatedPrompt(task="t", doc_id=0, prompt="", kind="chat", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(ConfigurationError, match="no chat template"):
        prepare([item], tokenizer)


def test_a_path_is_read_and_capped(tokenizer, tmp_path):
    path = tmp_path / "deviated_prompts.json"
    items = [DeviatedPrompt(task="t", doc_id=i, prompt=str(i)) for i in range(5)]
    path.write_text(DeviatedPrompts(prompts=items).to_json())
    assert [p.doc_id for p in prepare(path, tokenizer, max_prompts=2).prompts] == [0, 1]
    assert [p.doc_id for p in prepare(str(path), tokenizer, max_prompts=2).prompts] == [0, 1]


def test_no_deviated_prompt_gives_the_curated_set_and_says_so(tokenizer):
    done = prepare(DeviatedPrompts(), tokenizer, max_model_len=200)
    assert done.curated
    assert "no sample deviated" in done.note
    assert {prompt.source for prompt in done.prompts} == {"curated"}


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        ([], "empty"),
        ([""], "prompt 0 is empty"),
        (["a", []], "prompt 1 is empty"),
        ([[1, -2]], "-2 is no token id"),
        ([[1, 2.5]], "2.5 is no token id"),
        ([[True]], "True is no token id"),
        ([[1, VOCAB_TOO_HIGH := 10_000]], "10000 is no token id"),
        ([3], "prompt 0 is a int"),
        ("just a text", "must be a list"),
        ("nowhere/deviated.json", "cannot be read"),
        (["x" * 61], r"62 prompt tokens plus output_length 4 make 66, but max_model_len is 64"),
    ],
)
def test_bad_prompts_are_refused(tokenizer, prompts, words):
    with pytest.raises(ConfigurationError, match=words) as caught:
        prepare(prompts, tokenizer, vocab_size=600)
    assert caught.value.message


def test_zero_output_is_refused(tokenizer):
    with pytest.raises(ConfigurationError, match="output_length is 0"):
        prepare(["a"], tokenizer, output_length=0)


def test_a_deviated_prompt_that_does_not_fit_is_left_out_and_named(tokenizer):
    items = [DeviatedPrompt(task="t", doc_id=0, prompt="x" * 100), DeviatedPrompt(task="t", doc_id=1, prompt="y")]
    done = prepare(items, tokenizer)
    assert [(p.index, p.doc_id) for p in done.prompts] == [(0, 1)]
    assert done.skipped[0].startswith("t #0: 101 prompt tokens")


def test_when_no_deviated_prompt_fits_it_is_an_error(tokenizer):
    with pytest.raises(ConfigurationError, match="no deviated prompt fits"):
        prepare([DeviatedPrompt(task="t", doc_id=0, prompt="x" * 100)], tokenizer)


def test_damaged_deviated_prompts_name_the_file(tokenizer, tmp_path):
    path = tmp_path / "deviated_prompts.json"
    path.write_text("{")
    with pytest.raises(ConfigurationError, match=r"deviated_prompts\.json"):
        prepare(path, tokenizer)
