"""Captures inside the engine against a stand-in for its runner: whose row is whose, and whose block."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from . import inside_stubs
from .paged_runner import BLOCK, DIM, HEADS, WIDTH, Fp8Impl, Runner

ATTENTION = "layers.1.self_attn"
NORM = "layers.0.norm:out0"
Start = Callable[..., Any]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """`start(runner, a={...})`: captures for the requests named."""
    inside_stubs.install(monkeypatch)
    from assay_inside import capturing  # type: ignore[import-not-found]

    def make(runner: Runner, **requests: dict[str, Any]) -> Any:
        return capturing.Capturing(runner, requests)

    return make


def take(capturing: Any, name: str, positions: int) -> Any:
    """As for a request of `positions` tokens and one more, the sampled one."""
    return types.SimpleNamespace(**capturing.take(name, [0] * (positions + 1), 0, None))


def rows_of(name: str, positions: int) -> torch.Tensor:
    """What the stand-in's embedding gives: the position plus 100 times the request's number."""
    return (torch.arange(positions) + 100.0 * (ord(name) - ord("a")))[:, None].expand(-1, WIDTH)


def keys_of(name: str, positions: int) -> torch.Tensor:
    """K (heads, positions, dim): the value of a token plus the head."""
    value = rows_of(name, positions)[:, 0]
    return (value[None, :, None] + torch.arange(HEADS)[:, None, None]).expand(-1, -1, DIM)


def test_rows_belong_to_their_request_and_position(start: Start) -> None:
    """Prefill in two parts, together with another request that is in a different state, with padding."""
    runner = Runner()
    captures = start(runner, a={"modules": [NORM], "kv": True}, b={"modules": [NORM]})
    runner.step({"a": (0, 3)}, new={"a": [1, 2]})
    runner.step({"b": (0, 2), "a": (3, 2)}, new={"b": [3]}, padded=True)
    runner.step({"a": (5, 1), "b": (2, 1)})
    captures.remove()
    first, second = take(captures, "a", 6), take(captures, "b", 3)
    assert torch.equal(first.tensors[f"tap.{NORM}"], rows_of("a", 6))
    assert torch.equal(second.tensors[f"tap.{NORM}"], rows_of("b", 3))
    assert torch.equal(first.tensors["kv.0.key"], keys_of("a", 6))
    assert torch.equal(first.tensors["kv.0.value"], keys_of("a", 6) + 0.5)
    assert (first.missing, second.missing) == ({}, {})
    assert first.block_size == BLOCK
    assert not [name for name in second.tensors if name.startswith("kv.")]


def test_nothing_is_left_behind(start: Start) -> None:
    runner = Runner()
    captures = start(runner, a={"modules": [NORM, f"{ATTENTION}.attn:query"], "kv": True, "replacements": []})
    assert "execute_model" in vars(runner)
    captures.remove()
    assert "execute_model" not in vars(runner)
    for module in runner.model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_a_preempted_request_begins_again_in_other_blocks(start: Start) -> None:
    runner = Runner()
    captures = start(runner, a={"modules": [NORM], "kv": True})
    runner.step({"a": (0, 5)}, new={"a": [1, 2]})
    runner.step({"b": (0, 2)}, new={"b": [2]})
    runner.step({"a": (0, 6)}, more={"a": [4, 1]}, resumed=("a",))
    found = take(captures, "a", 6)
    assert torch.equal(found.tensors["kv.1.key"][0, :, 0], keys_of("a", 6)[0, :, 0] * 2 + 0.5)
    assert torch.equal(found.tensors[f"tap.{NORM}"], rows_of("a", 6))
    assert found.missing == {}


@pytest.mark.parametrize("given", [{"new": {"b": [1, 2]}}, {"new": {"b": [2]}}], ids=["both", "the second"])
def test_blocks_are_copied_before_somebody_else_gets_them(start: Start, given: dict[str, Any]) -> None:
    """`a` has ended; `b` is given its blocks and writes over them."""
    runner = Runner()
    captures = start(runner, a={"kv": True})
    runner.step({"a": (0, 6)}, new={"a": [1, 2]})
    runner.step({"b": (0, 3)}, **given)
    found = take(captures, "a", 6)
    assert torch.equal(found.tensors["kv.0.key"], keys_of("a", 6))
    assert found.missing == {}


def test_blocks_behind_a_sliding_window_are_kept(start: Start) -> None:
    """The request is given its own first block again, as position 8 and on."""
    runner = Runner()
    captures = start(runner, a={"kv": True})
    runner.step({"a": (0, 8)}, new={"a": [1, 2]})
    runner.step({"a": (8, 2)}, more={"a": [1]})
    found = take(captures, "a", 10)
    assert torch.equal(found.tensors["kv.0.key"], keys_of("a", 10))


def test_positions_that_are_not_there_are_nan_and_named(start: Start) -> None:
    """Positions 0 to 3 came out of the prefix cache, into which nobody looked; its block is gone (the null block)."""
    runner = Runner()
    captures = start(runner, a={"modules": [NORM], "kv": True})
    runner.step({"a": (4, 2)}, new={"a": [0, 2]})
    found = take(captures, "a", 7)
    assert found.missing == {
        f"tap.{NORM}": "not computed at positions 0-3, 6",
        **{
            f"kv.{layer}.{which}": "not in the cache: positions 0-3, 6"
            for layer in (0, 1)
            for which in ("key", "value")
        },
    }
    assert torch.isnan(found.tensors[f"tap.{NORM}"]).all(-1).tolist() == [True] * 4 + [False] * 2 + [True]
    assert torch.equal(found.tensors["kv.0.key"][:, 4:6], keys_of("a", 6)[:, 4:6])
    assert torch.isnan(found.tensors["kv.0.key"][:, [0, 1, 2, 3, 6]]).all()


def test_points_of_an_attention_layer(start: Start) -> None:
    runner = Runner()
    points = [f"{ATTENTION}.attn:{point}" for point in ("query", "key", "value", "attn", "in1", "out0")]
    captures = start(runner, a={"modules": [*points, f"{ATTENTION}:key", "layers.1:out1", "layers.1:in1"]})
    runner.step({"a": (0, 2)}, new={"a": [1]})
    found = take(captures, "a", 2).tensors
    query, key, value, returned = (
        found[f"tap.{ATTENTION}.attn:{point}"] for point in ("query", "key", "value", "attn")
    )
    assert torch.equal(value, key + 0.5)
    assert torch.equal(returned, query + value)
    assert torch.equal(found[f"tap.{ATTENTION}.attn:in1"], key)
    assert torch.equal(found[f"tap.{ATTENTION}:key"], key), "the only attention layer below"
    assert torch.equal(found[f"tap.{ATTENTION}.attn:out0"], returned)
    assert torch.equal(found["tap.layers.1:out1"], found["tap.layers.1:in1"] + 1), "the residual of the pair"


def test_places_that_cannot_be_tapped_say_why(start: Start) -> None:
    runner = Runner()
    asked = {
        "layers.1.rotary_emb:out0": "several places share this module",
        "layers.0.unused:out0": "never called",
        "pooler:out0": "has 1 rows where the call runs 3 tokens",
        "layers.5:out0": "no module layers.5",
        "layers.0:out7": "never called with a tensor there",
        "layers.0.norm:query": "0 attention layers",
        "layers:query": "2 attention layers",
        "layers.0.norm": "is no tap",
    }
    captures = start(runner, a={"modules": list(asked)})
    runner.step({"a": (0, 3)}, new={"a": [1]})
    found = take(captures, "a", 3)
    assert found.tensors == {}
    for tap, words in asked.items():
        assert words in found.missing[f"tap.{tap}"]


@pytest.mark.parametrize("together", [False, True])
def test_a_runner_that_does_not_say_its_order(start: Start, together: bool) -> None:
    """The second generation's: one request at a time is clear, several are not."""
    runner = Runner()
    runner.input_batch = None
    captures = start(runner, a={"modules": [NORM]})
    runner.step({"a": (0, 2)}, new={"a": [1]})
    runner.step({"a": (2, 1), **({"b": (0, 1)} if together else {})}, new={"b": [2]} if together else {})
    found = take(captures, "a", 3)
    if together:
        assert found.missing == {f"tap.{NORM}": "not computed at positions 2"}
    else:
        assert torch.equal(found.tensors[f"tap.{NORM}"], rows_of("a", 3))


def test_replaced_rows_flow_on_and_are_recorded_as_computed(start: Start, tmp_path: Path) -> None:
    """Columns 2 and 3 of positions 1 to 3; a NaN in the file stays out. Another request in the call is untouched."""
    rows = torch.tensor([[-1.0, -2.0], [float("nan"), -4.0], [-5.0, -6.0]])
    save_file({"rows": rows}, tmp_path / "rows")
    put = {"tap": "layers.0:out0", "file": str(tmp_path / "rows"), "tensor": "rows", "first_row": 1, "columns": [2, 4]}
    runner = Runner()
    taps = ["layers.0:out0", "layers.1:in0"]
    captures = start(runner, a={"modules": taps, "replacements": [put]}, b={"modules": taps})
    runner.step({"b": (0, 1), "a": (0, 3)}, new={"a": [1], "b": [2]})
    runner.step({"a": (3, 1)})
    found, other = take(captures, "a", 4), take(captures, "b", 1)
    computed, given_on = (found.tensors[f"tap.{tap}"] for tap in taps)
    expected = computed.clone()
    expected[1, 2:4], expected[2, 3], expected[3, 2:4] = rows[0], -4.0, rows[2]
    assert torch.equal(given_on, expected)
    assert torch.equal(other.tensors["tap.layers.0:out0"], other.tensors["tap.layers.1:in0"])
    assert found.error == ""


def test_replacements_that_never_happen_or_do_not_fit_are_errors(start: Start, tmp_path: Path) -> None:
    save_file({"rows": torch.zeros(1, 3), "flat": torch.zeros(3)}, tmp_path / "rows")
    put = {"tap": "layers.0:out0", "file": str(tmp_path / "rows"), "tensor": "rows", "first_row": 0}
    runner = Runner()
    captures = start(runner, a={"replacements": [put]}, b={"replacements": [dict(put, first_row=9)]})
    runner.step({"a": (0, 1), "b": (0, 1)}, new={"a": [1], "b": [2]})
    assert "3 features for columns 0 to 8 of 8" in take(captures, "a", 1).error
    assert "never took place" in take(captures, "b", 1).error
    captures.remove()
    for change, words in (({"tensor": "flat"}, "not (rows, features)"), ({"tensor": "x"}, "cannot be read"),
                          ({"tap": "layers.9:out0"}, "no module")):  # fmt: skip
        with pytest.raises(ValueError, match=words.replace("(", r"\(").replace(")", r"\)")):
            start(runner, a={"replacements": [dict(put, **change)]})
        assert "execute_model" not in vars(runner)


def test_an_error_of_ours_does_not_end_the_engine(start: Start, tmp_path: Path) -> None:
    """A release of vLLM whose scheduler says things differently: the call runs, and what was asked for is missing."""
    save_file({"rows": torch.zeros(1, WIDTH)}, tmp_path / "rows")
    put = {"tap": NORM, "file": str(tmp_path / "rows"), "tensor": "rows", "first_row": 0}
    runner = Runner()
    captures = start(runner, a={"modules": [NORM], "kv": True}, b={"replacements": [put]})
    runner.step({"a": (0, 2)}, new={"a": [1]})
    captures.steps.before_reuse.append(lambda request, fresh: {}["gone"])
    assert runner.step({"a": (2, 1)}).shape == (1, WIDTH)
    found = take(captures, "a", 3)
    assert found.tensors == {}
    assert set(found.missing) == {f"tap.{NORM}", "kv"}
    assert all("KeyError: 'gone'" in reason for reason in found.missing.values())
    assert "could not be followed" in take(captures, "b", 1).error


def test_an_fp8_cache_is_read_with_its_scale(start: Start) -> None:
    """Values to 8 are exact in FP8; what is stored is multiplied with the layer's scale."""
    runner = Runner()
    for layer in runner.model.layers:
        attention = layer.self_attn.attn
        attention.impl, attention.kv_cache_dtype, attention._k_scale_float = Fp8Impl(), "fp8", 2.0
        attention.kv_cache = attention.kv_cache.to(torch.uint8)
    captures = start(runner, a={"kv": True})
    runner.tables["a"] = [1]
    runner.step({"a": (0, 3)}, new={"a": [1]})
    found = take(captures, "a", 3)
    assert torch.equal(found.tensors["kv.0.key"], 2 * keys_of("a", 3))
    assert torch.equal(found.tensors["kv.0.value"], keys_of("a", 3) + 0.5)


@pytest.mark.parametrize("shape", [(2, 8, BLOCK, HEADS, DIM), (8, 2, BLOCK, HEADS, DIM)], ids=["pair first", "second"])
def test_caches_of_other_backends_are_what_their_shape_says(start: Start, shape: tuple[int, ...]) -> None:
    runner = Runner()
    cache = torch.arange(float(torch.tensor(shape).prod())).view(shape)
    for layer in runner.model.layers:
        layer.self_attn.attn.kv_cache = cache
    captures = start(runner, a={"kv": True})
    watched = captures.steps.watched["a"]
    watched.restart([[5, 3]], 6)
    keys, values = cache.unbind(shape.index(2))
    found = take(captures, "a", 6)
    expected = torch.cat([keys[5], keys[3][:2]]).transpose(0, 1)
    assert torch.equal(found.tensors["kv.0.key"], expected)
    assert torch.equal(found.tensors["kv.0.value"], torch.cat([values[5], values[3][:2]]).transpose(0, 1))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda runner, spec: setattr(spec, "head_size", 0), "no keys and values"),
        (lambda runner, spec: setattr(spec, "num_kv_heads", 3), "none of the known layouts"),
        (lambda runner, spec: setattr(spec, "block_size", 6), "blocks of 6 tokens in a cache of 4"),
        (lambda runner, spec: [setattr(layer.self_attn.attn, "kv_cache_dtype", "nvfp4") or
                               setattr(layer.self_attn.attn, "kv_cache", torch.zeros(8, 2, 4, 8, dtype=torch.uint8))
                               for layer in runner.model.layers], "type nvfp4 is not decoded"),
        (lambda runner, spec: [setattr(layer.self_attn.attn, "impl", object()) for layer in runner.model.layers],
         "inside the attention kernel"),
    ],
)  # fmt: skip
def test_caches_that_cannot_be_read_say_why(start: Start, spoil: Callable[[Any, Any], None], words: str) -> None:
    runner = Runner()
    spoil(runner, runner.kv_cache_config.kv_cache_groups[0].kv_cache_spec)
    found = start(runner, a={"kv": True}).take("a", [0, 0], 0, None)
    assert found["tensors"] == {}
    assert all(words in reason for reason in found["missing"].values())
    assert len(found["missing"]) == 4


def test_a_runner_without_a_cache_to_be_found(start: Start) -> None:
    runner = Runner()
    del runner.kv_cache_config
    found = start(runner, a={"kv": True}).take("a", [0, 0], 0, None)
    assert "does not say where its KV cache is" in found["missing"]["kv"]


def test_a_fault_before_the_cache_does_not_hide_from_the_reader(start: Start) -> None:
    """Shifted slots: the reader finds what lies in the cache, not what was meant to be there."""
    runner = Runner()
    for layer in runner.model.layers:
        impl = layer.self_attn.attn.impl
        write = impl.do_kv_cache_update
        impl.do_kv_cache_update = lambda a, k, v, c, slots, write=write: write(a, k, v, c, slots ^ 1)
    captures = start(runner, a={"kv": True})
    runner.step({"a": (0, 4)}, new={"a": [1]})
    found = take(captures, "a", 4)
    assert torch.equal(found.tensors["kv.0.key"], keys_of("a", 4)[:, [1, 0, 3, 2]])
