"""K and V come out of the pass that gives the logits: all positions, also of sliding windows; nothing else changes."""

from __future__ import annotations

import pytest
import torch

from accuracy_core.capture.kv import KvCapture
from accuracy_core.goldens.teacher_forcing import forced_pass


@pytest.fixture(scope="module")
def windowed():
    """A random Mistral with a window of 8 tokens."""
    import transformers

    config = transformers.MistralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=8, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.MistralForCausalLM(config).eval()


def test_every_position_of_a_sliding_window_and_the_same_logits(windowed):
    prompt, tokens = list(range(1, 20)), [20, 21, 22]
    logits, captured = forced_pass(windowed, prompt, tokens, KvCapture())
    plain, _ = forced_pass(windowed, prompt, tokens)
    assert torch.equal(logits, plain)
    assert sorted(captured) == [f"kv.{layer}.{which}" for layer in (0, 1) for which in ("key", "value")]
    (key,) = captured["kv.0.key"]
    assert key.shape == (2, 21, 8)
    # V of the first layer by hand: the value projection of the normalised embeddings
    with torch.no_grad():
        layer = windowed.model.layers[0]
        hidden = layer.input_layernorm(windowed.model.embed_tokens(torch.tensor([*prompt, *tokens[:-1]])))
        value = layer.self_attn.v_proj(hidden).unflatten(-1, (2, 8)).transpose(0, 1)
    assert torch.allclose(captured["kv.0.value"][0], value, atol=1e-6)


def test_nothing_is_left_behind(windowed):
    before = len(windowed._forward_pre_hooks)
    with KvCapture().recording(windowed):
        assert len(windowed._forward_pre_hooks) == before + 1
    assert len(windowed._forward_pre_hooks) == before
