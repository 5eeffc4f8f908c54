"""Faults of serving against stand-ins: silent without their condition, and the cache is right after each call."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from . import inside_stubs
from .paged_runner import BLOCK, BLOCKS, DIM, HEADS, Fp8Impl, Impl, Runner
from .test_inside_faults import fault


@pytest.fixture(autouse=True)
def faults(monkeypatch: pytest.MonkeyPatch) -> Any:
    inside_stubs.install(monkeypatch)
    from assay_inside import faults  # type: ignore[import-not-found]

    return faults


class Fp8ReadingImpl(Fp8Impl):
    def forward(self, *args: Any, **kwargs: Any) -> None:
        pytest.fail("the kernel reads a cache that should have been changed first")


class ReadingImpl(Impl):
    """Its kernel returns the first head's V of the block that `metadata` names, one number per token."""

    def forward(self, layer: Any, query: Any, key: Any, value: Any, cache: Any, metadata: int, output: Any) -> Any:
        return cache[metadata, 0].flatten()[BLOCK * DIM :].view(BLOCK, DIM)[:, 0].tolist()


@pytest.fixture
def attention() -> Any:
    """Layer 0's attention of a runner that ran `a` in blocks 1 and 2: V at position p is p + 0.5."""
    runner = Runner()
    runner.input_batch.num_prompt_tokens = [0]
    for layer in runner.model.layers:
        layer.self_attn.attn.impl = ReadingImpl()
    runner.step({"a": (0, 6)}, new={"a": [1, 2]})
    runner.requests = {"x": types.SimpleNamespace(block_ids=([1, 2],))}  # type: ignore[attr-defined]
    runner._assay_step_tokens = types.SimpleNamespace(requests=["x"] * 2, hits={})  # type: ignore[attr-defined]
    return types.SimpleNamespace(runner=runner, layer=runner.model.layers[0].self_attn.attn)


def values(attention: Any, block: int) -> list[float]:
    layer = attention.layer
    found: list[float] = layer.impl.forward(layer, None, None, None, layer.kv_cache, block, output=None)
    return found


def test_a_stale_hit_shifts_values_of_cached_blocks_while_the_request_runs(faults: Any, attention: Any) -> None:
    right = attention.layer.kv_cache.clone()
    assert faults.inject(attention.runner, fault("stale-prefix-hit", layer=0)) == ["layers.0.self_attn.attn"]
    assert values(attention, 1) == [0.5, 1.5, 2.5, 3.5], "nothing came out of the cache"
    attention.runner._assay_step_tokens.hits["x"] = BLOCK
    assert values(attention, 1) == [1.5, 2.5, 3.5, 0.5]
    assert values(attention, 2)[:2] == [4.5, 5.5], "the second block was computed"
    assert torch.equal(attention.layer.kv_cache, right), "the cache is right for whoever comes next"
    attention.runner._assay_step_tokens.requests = ["y"]
    assert values(attention, 1) == [0.5, 1.5, 2.5, 3.5], "another request runs"


def test_a_cache_that_cannot_be_put_back_is_refused(faults: Any, attention: Any) -> None:
    for layer in attention.runner.model.layers:
        kernel = layer.self_attn.attn
        kernel.impl, kernel.kv_cache_dtype = Fp8ReadingImpl(), "fp8"
        kernel.kv_cache = torch.zeros(BLOCKS, HEADS, BLOCK, 2 * DIM, dtype=torch.uint8)
    faults.inject(attention.runner, fault("stale-prefix-hit", layer=0))
    attention.runner._assay_step_tokens.hits["x"] = BLOCK
    with pytest.raises(faults.FaultNotApplicable, match="FP8"):
        values(attention, 1)


class Head(nn.Module):
    """Gives back the hidden rows as logits."""

    def forward(self, lm_head: Any, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.clone()


class Rotary(nn.Module):
    """Tells the positions that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.cos_sin_cache = torch.zeros(64, 2)

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return positions


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rotary, self.logits_processor = Rotary(), Head()

    def forward(self, positions: torch.Tensor) -> list[int]:
        rotated: list[int] = self.rotary(positions).tolist()
        return rotated


class Serving:
    """`call(runs, new=, finished=)` runs one call, and returns the positions that its tokens are rotated by.

    `runs`: request -> (first position, tokens); `new` is those that begin; prompts have 6 tokens.
    """

    def __init__(self) -> None:
        self.model = Whole()
        self.input_batch = types.SimpleNamespace(req_ids=[], num_prompt_tokens=np.full(4, 6))

    def execute_model(self, output: Any) -> Any:
        self.input_batch.req_ids = list(output.runs)
        positions = [first + index for first, count in output.runs.values() for index in range(count)]
        return self.model(positions=torch.tensor(positions))

    def call(self, runs: dict[str, tuple[int, int]], new: str = "", finished: str = "") -> Any:
        begun = [types.SimpleNamespace(req_id=name, num_computed_tokens=runs[name][0]) for name in new]
        return self.execute_model(
            types.SimpleNamespace(
                runs=runs, scheduled_new_reqs=begun, finished_req_ids=set(finished),
                num_scheduled_tokens={name: count for name, (_, count) in runs.items()},
            )
        )  # fmt: skip

    def logits(self, *rows: float) -> list[float]:
        found: list[float] = self.model.logits_processor(None, torch.tensor(rows)[:, None])[:, 0].tolist()
        return found


def test_later_pieces_are_rotated_further_and_nothing_else(faults: Any) -> None:
    """`a` comes in three pieces, `b` found two tokens in the cache: it begins there, which is no second piece."""
    serving = Serving()
    faults.inject(serving, fault("chunk-boundary", strength=10, layer=None))
    assert serving.call({"a": (0, 3)}, new="a") == [0, 1, 2]
    assert serving.call({"a": (3, 2), "b": (2, 4)}, new="b") == [13, 14, 2, 3, 4, 5]
    assert serving.call({"a": (5, 1), "b": (6, 1)}) == [15, 6]
    assert serving.call({"a": (6, 1)}) == [6]


def test_hits_are_known_until_the_request_ends(faults: Any) -> None:
    from assay_inside import faults_common

    serving = Serving()
    step = faults_common.step_tokens(serving)
    serving.call({"a": (0, 6)}, new="a")
    serving.call({"a": (6, 1), "b": (2, 4)}, new="b")
    assert step.hits == {"b": 2}
    serving.call({"a": (7, 1)}, finished="b")
    assert step.hits == {}


def test_logits_of_a_batch_take_a_share_of_the_neighbours(faults: Any) -> None:
    serving = Serving()
    faults.inject(serving, fault("batch-dependent", strength=0.25, layer=None))
    serving.call({"a": (0, 6)}, new="a")
    assert serving.logits(8.0) == [8.0]
    assert serving.logits(8.0, 4.0) == [8.0, 4.0], "rows of one request's prompt"
    serving.call({"a": (6, 1), "b": (0, 6)}, new="b")
    assert serving.logits(8.0, 4.0) == [7.0, 5.0]
