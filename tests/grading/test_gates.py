"""The gate matrix: what each probe scores, gate by gate; and everything that tries to fool the grader scores 0."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from accuracy_core.errors import ConfigurationError
from accuracy_core.grading import TASKS, grade, grade_task, unfused
from accuracy_core.grading.shape import bytes_per_step, make_cache, make_tokens, make_weights
from tests.grading.conftest import EXAMPLES, SMALL, TASK, confinable, gates, run


@pytest.mark.slow
@confinable
class TestMatrix:
    def test_a_stub_is_an_error(self):
        result = run(EXAMPLES / "stub.py")
        assert "NotImplementedError" in result.error
        assert result.conclusion().exit_code == 3
        assert (result.score, set(gates(result).values())) == (0, {None})

    def test_the_unfused_reference_is_right_and_scores_nothing(self):
        result = run(EXAMPLES / "unfused.py")
        assert gates(result) == {"correct": True, "launches": False, "dominant": False}
        assert result.from_unfused == 0.0
        assert 0 < result.gates[0].value < TASK.tolerance
        assert result.gates[1].value > 50
        assert result.score == 0
        assert result.conclusion().exit_code == 2

    def test_wrapping_it_in_one_operator_lowers_nothing(self):
        result = run(EXAMPLES / "wrapped.py")
        assert (gates(result)["correct"], gates(result)["launches"], result.score) == (True, False, 0)
        assert result.gates[1].value > 50

    def test_one_fused_operator_with_wrong_math(self):
        result = run(EXAMPLES / "fused_wrong.py")
        assert gates(result) == {"correct": False, "launches": True, "dominant": True}
        assert result.gates[0].value > 10 * TASK.tolerance
        assert result.from_unfused > 10 * TASK.tolerance
        assert result.score == 0

    @pytest.mark.parametrize("name", list(TASKS))
    def test_a_right_fused_step_scores(self, fused, name):
        config = replace(SMALL, fp8_weights=TASKS[name].config.fp8_weights)
        result = grade(fused, replace(TASK, name=name, config=config))
        assert gates(result) == {"correct": True, "launches": True, "dominant": True}, result
        assert result.gates[0].value < TASK.tolerance / 1.5
        assert result.score == pytest.approx(1 / result.seconds_per_step)
        assert result.baselines.eager > result.baselines.eager_busy > 0
        assert result.conclusion().exit_code == 0
        assert result.baselines.floor == pytest.approx(bytes_per_step(config) / result.baselines.bandwidth_bytes_per_s)


FUSED_COPY = "import fused_right\ndef build(config, weights):\n    step = fused_right.build(config, weights)\n"


@pytest.mark.slow
@confinable
@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("    import time\n    def late(t, c):\n        time.sleep(1000)\n    return late\n", "no answer within"),
        ("    import os\n    os.fork()\n    return step\n", "PermissionError"),
        ("    import subprocess\n    subprocess.run(['true'])\n    return step\n", "PermissionError"),
        ("    import socket\n    socket.socket()\n    return step\n", "PermissionError"),
        ("    open('/tmp/outside-the-folder', 'w')\n    return step\n", "PermissionError"),
        ("    import torch\n    eaten = torch.ones(1 << 40)\n    return step\n", "RuntimeError"),
        ("    import os\n    os._exit(0)\n", "exit code 0"),
        ("    import ctypes\n    ctypes.string_at(0)\n", "SIGSEGV"),
        ("    return lambda t, c: step(t, c) * float('nan')\n", "NaN"),
        ("    return lambda t, c: step(t, c)[:, :10]\n", "wanted floating-point logits"),
        ("    return lambda t: step\n", "does not take 2 arguments"),
        ("    return 3\n", "not a function"),
        ("    seen = []\n    def again(t, c):\n        seen[:] = seen or [step(t, c).clone()]\n        return seen[0]\n"
         "    return again\n", "seed"),
        ("    import torch\n    def half(t, c):\n        out = torch.empty(c.k.shape[1], config.vocab)\n"
         "        out[:, ::2] = step(t, c)[:, ::2]\n        return out\n    return half\n", "nobody wrote"),
        ("    import sys\n    print('{\"event\": \"ran\"}')\n    sys.stdout.flush()\n    raise SystemExit(0)\n",
         "SystemExit"),
        ("x = (", "SyntaxError"), ("    import no_such_module\n", "ModuleNotFoundError"),
    ],
    ids=["hangs", "forks", "starts a program", "opens a socket", "writes outside", "eats memory", "exits", "crashes",
         "NaN", "too few logits", "wrong signature", "no function", "repeats itself", "half written",
         "fakes answers", "no Python", "does not import"],
)  # fmt: skip
def test_what_scores_nothing_and_why(submit, body, says):
    result = submit(FUSED_COPY + body)
    assert result.score == 0
    assert says in result.error + result.gates[0].detail, result
    assert not result.passed


def test_the_reference_is_the_model_that_transformers_computes():
    """One step of the graded model against LlamaForCausalLM with the same weights and the same cache."""
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    config = replace(SMALL, dtype="float32")
    weights = make_weights(config, 3)
    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=config.hidden, intermediate_size=config.ffn, num_hidden_layers=config.layers,
            num_attention_heads=config.heads, num_key_value_heads=config.kv_heads, head_dim=config.head_dim,
            vocab_size=config.vocab, tie_word_embeddings=False, rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        )
    ).eval()  # fmt: skip
    names = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
             "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
             "attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}  # fmt: skip
    state = {"model.embed_tokens.weight": weights["embedding"], "model.norm.weight": weights["norm"],
             "lm_head.weight": weights["embedding"] / math.sqrt(config.hidden)}  # fmt: skip
    for layer in range(config.layers):
        state |= {f"model.layers.{layer}.{theirs}.weight": weights[f"{layer}.{ours}"] for ours, theirs in names.items()}
    model.load_state_dict(state)
    cache, ids = make_cache(config, 5, 1), make_tokens(config, 6, 1)[0]
    past = DynamicCache(config=model.config)
    for layer in range(config.layers):
        past.update(cache.k[layer, :, :, :-1].clone(), cache.v[layer, :, :, :-1].clone(), layer)
    with torch.inference_mode():
        theirs = model(input_ids=ids[:, None], past_key_values=past).logits[:, 0]
        ours = unfused.build(config, weights)(ids, cache)
    assert torch.allclose(ours, theirs, atol=1e-4)


def test_bytes_that_a_step_must_read_by_hand():
    q, kv, hidden, ffn = 64, 32, 64, 128
    matrices = 512 * 64 + 2 * (q * hidden + 2 * kv * hidden + hidden * q + 3 * ffn * hidden)
    cache = 2 * 2 * 1 * 1 * 16 * 32
    assert bytes_per_step(SMALL) == 2 * (matrices + cache)


def test_names_that_do_not_exist(tmp_path):
    with pytest.raises(ConfigurationError) as caught:
        grade_task("bf-16")
    assert "bf16" in caught.value.fix
    with pytest.raises(ConfigurationError, match="is no file"):
        grade(tmp_path / "nothing.py", TASK)


def test_the_1b_shape_is_the_one_that_was_measured():
    config = grade_task("bf16", "1b").config
    # 2.47 GB of weights, .07 GB of cache at 512 tokens and batch 4 in the source; here batch 1
    assert bytes_per_step(replace(config, context=0)) == pytest.approx(2.47e9, rel=0.01)
