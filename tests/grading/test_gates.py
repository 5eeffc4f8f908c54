"""The gate matrix: what each probe scores, gate by gate; and everything that tries to fool the grader scores 0."""

from __future__ import annotations

import math
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from accuracy_core.calibration.relative_error import relative_error
from accuracy_core.errors import ConfigurationError
from accuracy_core.grading import TASKS, GradeResult, grade, grade_task, sandbox, unfused
from accuracy_core.grading.counting import count_on_cpu, counter
from accuracy_core.grading.shape import bytes_per_step, make_cache, make_tokens, make_weights

EXAMPLES = Path(__file__).parents[2] / "examples" / "grading"
ASSETS = Path(__file__).parent / "assets"
SMALL = replace(
    TASKS["bf16"].config, layers=2, hidden=64, ffn=128, heads=2, kv_heads=1, head_dim=32, vocab=512, context=16
)
TASK = replace(TASKS["bf16"], config=SMALL, steps=4, seeds=(100, 101), timed_repeats=2, time_limit_s=20)

confinable = pytest.mark.skipif(not sandbox.available(), reason="this kernel has no Landlock")
graded = [pytest.mark.slow, confinable]


def gates(result: GradeResult) -> dict[str, bool | None]:
    return {gate.name: gate.passed for gate in result.gates}


def run(path: Path, task=TASK, **settings) -> GradeResult:
    return grade(path, task, baselines=False, **settings)


def written(tmp_path: Path, source: str) -> Path:
    path = tmp_path / "submission" / "mine.py"
    path.parent.mkdir()
    path.write_text(source)
    return path


@pytest.fixture(scope="session")
def fused(tmp_path_factory) -> Path:
    """The right fused step with its library compiled beside it."""
    folder = tmp_path_factory.mktemp("fused")
    shutil.copy(ASSETS / "fused_right.py", folder)
    subprocess.run(
        ["g++", "-O3", "-march=native", "-ffast-math", "-fno-finite-math-only", "-shared", "-fPIC", "-o",
         str(folder / "fused_step.so"), str(ASSETS / "fused_step.cpp")], check=True,
    )  # fmt: skip
    return folder / "fused_right.py"


@pytest.mark.slow
@confinable
class TestMatrix:
    def test_a_stub_is_an_error(self):
        result = run(EXAMPLES / "stub.py")
        assert "NotImplementedError" in result.error
        assert (result.score, set(gates(result).values())) == (0, {None})

    def test_the_unfused_reference_is_right_and_scores_nothing(self):
        result = run(EXAMPLES / "unfused.py")
        assert gates(result) == {"correct": True, "launches": False, "dominant": False}
        assert result.gates[1].value > 50
        assert result.score == 0

    def test_wrapping_it_in_one_operator_lowers_nothing(self):
        result = run(EXAMPLES / "wrapped.py")
        assert (gates(result)["correct"], gates(result)["launches"], result.score) == (True, False, 0)
        assert result.gates[1].value > 50

    def test_one_fused_operator_with_wrong_math(self):
        result = run(EXAMPLES / "fused_wrong.py")
        assert gates(result) == {"correct": False, "launches": True, "dominant": True}
        assert result.gates[0].value > 10 * TASK.tolerance
        assert result.score == 0

    @pytest.mark.parametrize("name", list(TASKS))
    def test_a_right_fused_step_scores(self, fused, name):
        config = replace(SMALL, fp8_weights=TASKS[name].config.fp8_weights)
        result = grade(fused, replace(TASK, name=name, config=config))
        assert gates(result) == {"correct": True, "launches": True, "dominant": True}, result
        assert result.gates[0].value < TASK.tolerance / 1.5
        assert result.score == pytest.approx(1 / result.seconds_per_step)
        assert result.baselines.eager > 0
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
    ],
    ids=["hangs", "forks", "starts a program", "opens a socket", "writes outside", "eats memory", "exits", "crashes",
         "NaN", "too few logits", "wrong signature", "no function", "repeats itself", "half written", "fakes answers"],
)  # fmt: skip
def test_what_scores_nothing_and_why(tmp_path, fused, body, says):
    path = written(tmp_path, FUSED_COPY + body)
    for file in fused.parent.iterdir():
        shutil.copy(file, path.parent)
    result = run(path, replace(TASK, time_limit_s=8))
    assert result.score == 0
    assert says in result.error + result.gates[0].detail, result
    assert not result.passed


@pytest.mark.slow
@confinable
@pytest.mark.parametrize(
    ("source", "says"),
    [("x = (", "SyntaxError"), ("import no_such_module", "ModuleNotFoundError"), ("y = 1", "not a function")],
)
def test_what_cannot_be_loaded(tmp_path, source, says):
    assert says in run(written(tmp_path, source)).error


def steps_of(step, config, seed, steps=4):
    cache, rows = make_cache(config, seed, steps), []
    for ids in make_tokens(config, seed + 1, steps):
        rows.append(step(ids, cache).float())
        cache.length += 1
    return torch.cat(rows)


@pytest.mark.parametrize("name", list(TASKS))
def test_both_precisions_of_the_residual_stream_pass_and_wrong_ones_do_not(name):
    """Margin of every right variant >= 1.5, discrimination of a wrong one >= 10, at the shipped tolerance."""
    task = grade_task(name)
    config = replace(task.config, context=64)
    weights = make_weights(config, 7)
    want = steps_of(unfused.build_in(config, weights, torch.float32), config, 0)
    bf16 = torch.bfloat16
    for residual in (bf16, torch.float32):
        got = steps_of(unfused.build_in(config, weights, bf16, residual), config, 0)
        assert relative_error(got, want) < task.tolerance / 1.5
    wrong = dict(weights)
    wrong["1.down"] = torch.zeros_like(weights["1.down"].float()).to(weights["1.down"].dtype)
    broken = steps_of(unfused.build_in(config, wrong, bf16), config, 0)
    assert relative_error(broken, want) > 5 * task.tolerance
    shuffled = {**weights, "0.q": weights["0.k"].repeat(config.heads // config.kv_heads, 1)}
    if not config.fp8_weights:
        other = steps_of(unfused.build_in(config, shuffled, bf16), config, 0)
        assert relative_error(other, want) > task.tolerance


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


def test_operators_inside_an_operator_are_counted():
    x = torch.randn(8, 8)

    @torch.library.custom_op("grading_test::nested", mutates_args=())
    def nested(a: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            a = a @ a
        return a

    assert count_on_cpu(lambda: nested(x)).launches >= 20
    assert count_on_cpu(lambda: x @ x).launches < 8


def test_bytes_that_a_step_must_read_by_hand():
    q, kv, hidden, ffn = 64, 32, 64, 128
    matrices = 512 * 64 + 2 * (q * hidden + 2 * kv * hidden + hidden * q + 3 * ffn * hidden)
    cache = 2 * 2 * 1 * 1 * 16 * 32
    assert bytes_per_step(SMALL) == 2 * (matrices + cache)


def test_names_that_do_not_exist(tmp_path):
    with pytest.raises(ConfigurationError) as caught:
        grade_task("bf-16")
    assert "bf16" in caught.value.fix
    with pytest.raises(ConfigurationError, match="cuda-graph"):
        counter("cuda-graph")
    with pytest.raises(ConfigurationError, match="is no file"):
        grade(tmp_path / "nothing.py", TASK)


def test_the_1b_shape_is_the_one_that_was_measured():
    config = grade_task("bf16", "1b").config
    # 2.47 GB of weights, .07 GB of cache at 512 tokens and batch 4 in the source; here batch 1
    assert bytes_per_step(replace(config, context=0)) == pytest.approx(2.47e9, rel=0.01)
