"""From a name to what is measured."""

from __future__ import annotations

import pytest

from accuracy_core.calibration import CalibrationOrder, resolve_order
from accuracy_core.calibration.corpus import corpus_prompts, texts_of
from accuracy_core.errors import ConfigurationError
from accuracy_core.models import embedded_model, model_fingerprint
from accuracy_core.models.tiny_tokenizer import build_tokenizer


def test_the_bundled_model_is_measured_on_texts_of_its_own_kind():
    subject, inputs = resolve_order(CalibrationOrder(quick=True))
    assert subject.fingerprint == model_fingerprint("embedded")
    assert subject.source.checkpoint == embedded_model()
    prompts = inputs.ids(subject.source.settings.vocab_size)
    assert len({tuple(prompt) for prompt in prompts}) == len(prompts) == 20
    begin = build_tokenizer()("Q: ").input_ids[:3]
    assert all(len(prompt) == 24 and prompt[:3] == begin for prompt in prompts)


def test_seeds_of_an_order():
    assert CalibrationOrder().seed_count == 80
    assert CalibrationOrder(quick=True, seeds=33).seed_count == 33


def test_the_width_of_the_one_b_shape_scales():
    subject, inputs = resolve_order(CalibrationOrder(model="random:llama-3.2-1b@0.125x3"))
    config = subject.source.config
    assert (config.hidden_size, config.num_attention_heads, config.num_key_value_heads) == (256, 4, 1)
    assert (config.intermediate_size, config.num_hidden_layers, config.head_dim) == (1024, 3, 64)
    assert not inputs.prompts
    whole = resolve_order(CalibrationOrder(model="random:llama-3.2-1b"))[0].source.config
    assert (whole.hidden_size, whole.intermediate_size, whole.num_hidden_layers) == (2048, 8192, 16)
    assert (whole.num_attention_heads, whole.num_key_value_heads, whole.vocab_size) == (32, 8, 128_256)


def test_shapes_have_fingerprints_of_their_own():
    names = ("random:llama-3.2-1b@0.125", "random:llama-3.2-1b@0.125x3", "random:qwen3", "random:qwen3x2")
    found = {resolve_order(CalibrationOrder(model=name))[0].fingerprint for name in names}
    assert len(found) == len(names)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("random:", "names no random model"),
        ("random:llama-3.2-1b@9", "width of 9"),
        ("random:llama-3.2-1b@0.125x0", "no layers"),
        ("random:qwen3@0.5", "cannot be scaled"),
        ("random:qwen33", "unknown architecture"),
        ("/no/such/folder", "does not exist"),
    ],
)
def test_models_that_cannot_be_made(model, message):
    with pytest.raises(ConfigurationError, match=message):
        resolve_order(CalibrationOrder(model=model))


def test_texts_that_are_too_short_are_continued_and_the_last_ones_dropped():
    tokenizer = build_tokenizer()
    prompts = corpus_prompts(tokenizer, ["abcdef", "ghijkl", "mn"], 8)
    assert prompts == [tokenizer("abcdef\nghijkl").input_ids[:8], tokenizer("ghijkl\nmn").input_ids[:8]]


def test_texts_of_a_file(tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("one\nparagraph\n\n\nanother\n")
    assert texts_of(file) == ["one\nparagraph", "another"]
    file.write_text(" \n")
    with pytest.raises(ConfigurationError, match="holds no text"):
        texts_of(file)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        texts_of(tmp_path / "none.txt")
    file.write_text("short")
    with pytest.raises(ConfigurationError, match="no text reaches 24 tokens"):
        resolve_order(CalibrationOrder(texts=str(file)))
