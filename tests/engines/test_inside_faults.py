"""Injection into vLLM's model, against a small model with vLLM's module names and a stand-in for its runner."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from . import inside_stubs

DIM = 4


class DownProjection(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return x + 1, None  # vLLM's linears return (output, bias)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down_proj = DownProjection()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.down_proj(x)[0]
        return output


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn: Any = nn.Identity()
        self.written: list[list[int]] = []
        self.attn.impl = types.SimpleNamespace(do_kv_cache_update=self._write)

    def _write(self, layer: Any, key: Any, value: Any, kv_cache: Any, slots: torch.Tensor) -> None:
        self.written.append(slots.tolist())


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(), Mlp()

    def forward(self, x: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        self.self_attn.attn.impl.do_kv_cache_update(self.self_attn.attn, x, x, None, slots)
        output: torch.Tensor = self.mlp(x)
        return output


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, x: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor) -> list[torch.Tensor]:
        return [layer(x, slots) for layer in self.model.layers]


class Runner:
    """Two requests: a prompt of 3 tokens, and one of 2."""

    def __init__(self) -> None:
        self.model = Model()
        group = types.SimpleNamespace(
            layer_names=[f"model.layers.{layer}.self_attn.attn" for layer in range(2)],
            kv_cache_spec=types.SimpleNamespace(block_size=4),
        )
        self.kv_cache_config = types.SimpleNamespace(kv_cache_groups=[group])
        self.input_batch = types.SimpleNamespace(req_ids=["a", "b"], num_prompt_tokens=np.array([3, 2, 0, 0]))

    def get_model(self) -> Model:
        return self.model

    def execute_model(self, step: Any) -> list[torch.Tensor]:
        count = len(step.positions)
        result: list[torch.Tensor] = self.model(
            torch.zeros(count, DIM), positions=torch.tensor(step.positions), slots=torch.tensor(step.slots)
        )
        return result


def step(scheduled: dict[str, int], positions: list[int], slots: list[int]) -> Any:
    return types.SimpleNamespace(
        num_scheduled_tokens=scheduled, positions=positions, slots=slots, scheduled_new_reqs=[], finished_req_ids=set()
    )


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Any:
    inside_stubs.install(monkeypatch)
    from assay_inside import faults

    return faults


def fault(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "layer": 1, "strength": 1, "position": 0, "params": {}, **fields}


def test_mlp_scale_scales_the_last_linear_of_one_layer(faults: Any) -> None:
    runner = Runner()
    assert faults.inject(runner, fault("mlp-scale", strength=2.0)) == ["model.layers.1.mlp.down_proj"]
    first, second = runner.execute_model(step({"a": 3}, [0, 1, 2], [0, 1, 2]))
    assert first.unique().tolist() == [1.0]
    assert second.unique().tolist() == [2.0]


def test_mlp_scale_from_a_position_on(faults: Any) -> None:
    runner = Runner()
    faults.inject(runner, fault("mlp-scale", strength=2.0, position=2))
    _, rows = runner.execute_model(step({"a": 3, "b": 1}, [0, 1, 2, 1], [0, 1, 2, 9]))
    assert rows[:, 0].tolist() == [1.0, 1.0, 2.0, 1.0]


def test_kv_slot_shifts_decoded_tokens_only(faults: Any) -> None:
    """Blocks of 4. `a` is in prefill, chunked: even a chunk of one token is no decode. `b` decodes at position 3."""
    runner = Runner()
    assert faults.inject(runner, fault("kv-slot")) == ["model.layers.1.self_attn.attn"]
    runner.execute_model(step({"a": 2, "b": 2}, [0, 1, 0, 1], [8, 9, 20, 21]))
    runner.execute_model(step({"a": 1, "b": 1}, [2, 2], [10, 22]))
    runner.execute_model(step({"a": 1, "b": 1}, [3, 3], [11, 23]))
    clean, shifted = (layer.self_attn.written for layer in runner.model.model.layers)
    assert clean == [[8, 9, 20, 21], [10, 22], [11, 23]]
    assert shifted == [[8, 9, 20, 21], [10, 23], [8, 20]]


def test_kv_slot_leaves_padding_and_warm_up_alone(faults: Any) -> None:
    runner = Runner()
    faults.inject(runner, fault("kv-slot"))
    runner.execute_model(step({}, [0, 0], [-1, -1]))
    runner.execute_model(step({"b": 1}, [5, 0, 0], [5, -1, -1]))
    assert runner.model.model.layers[1].self_attn.written == [[-1, -1], [6, -1, -1]]


def test_faults_without_a_place_say_so(faults: Any) -> None:
    with pytest.raises(faults.FaultNotApplicable, match="assay fault not applicable: no module matches"):
        faults.inject(Runner(), fault("mlp-scale", layer=9))
    with pytest.raises(faults.FaultNotApplicable, match="unknown inside the engine"):
        faults.inject(Runner(), fault("other"))
    runner = Runner()
    del runner.input_batch
    with pytest.raises(faults.FaultNotApplicable, match="VLLM_USE_V2_MODEL_RUNNER=0"):
        faults.inject(runner, fault("kv-slot"))
    runner = Runner()
    del runner.model.model.layers[1].self_attn.attn.impl.do_kv_cache_update
    with pytest.raises(faults.FaultNotApplicable, match="inside the attention kernel"):
        faults.inject(runner, fault("kv-slot"))


def test_every_registered_fault_can_be_injected_into_vllm(faults: Any) -> None:
    from accuracy_core.faults import FAULTS

    assert set(faults.INJECTIONS) == {name for name, fault in FAULTS.items() if "vllm" in fault.engines}


def test_a_fault_is_taken_out_again(faults: Any) -> None:
    runner = Runner()
    faults.inject(runner, fault("mlp-scale", strength=2.0))
    faults.inject(runner, fault("kv-slot"))
    faults.remove_all()
    _, rows = runner.execute_model(step({"b": 1}, [3], [11]))
    assert rows[0, 0] == 1.0
    assert runner.model.model.layers[1].self_attn.written == [[11]]


def test_an_injection_that_fails_halfway_leaves_nothing_behind(faults: Any) -> None:
    runner = Runner()
    layers = runner.model.model.layers
    del layers[1].self_attn.attn.impl.do_kv_cache_update
    clean = layers[0].self_attn.attn.impl.do_kv_cache_update
    with pytest.raises(faults.FaultNotApplicable):
        faults.inject(runner, fault("kv-scale", layer=None, strength=2.0))
    assert layers[0].self_attn.attn.impl.do_kv_cache_update == clean


def test_stale_slots_hold_the_successors_and_end_with_the_request(faults: Any) -> None:
    """K of the token at position p is p. `a` prefills 3 tokens, `b` decodes: its only token has no successor."""
    runner = Runner()
    written: list[list[float]] = []
    attention = runner.model.model.layers[1].self_attn
    attention.attn.impl.do_kv_cache_update = lambda layer, k, v, c, s: written.append(k[:, 0, 0].tolist())
    faults.inject(runner, fault("stale-prefix-cache", strength=2))
    keys = torch.tensor([0.0, 1.0, 2.0, 0.0]).view(-1, 1, 1)
    attention.attn.forward = lambda x: attention.attn.impl.do_kv_cache_update(None, keys, keys, None, torch.arange(4))
    runner.model.model.layers[1].forward = lambda x, slots: attention.attn(x)
    runner.execute_model(step({"a": 3, "b": 1}, [0, 1, 2, 0], [0, 1, 2, 9]))
    assert written == [[1.0, 2.0, 2.0, 0.0]]


def test_a_short_stride_writes_over_the_end_of_the_block_before(faults: Any) -> None:
    """Blocks of 4. `a` prefills positions 0 to 5 into slots 8 to 11 and 20, 21: position 4 goes where 3 went."""
    runner = Runner()
    runner.requests = {"a": None}
    runner.input_batch.num_prompt_tokens[0] = 6
    faults.inject(runner, fault("kv-block-stride"))
    runner.execute_model(step({"a": 6}, [0, 1, 2, 3, 4, 5], [8, 9, 10, 11, 20, 21]))
    runner.execute_model(step({"a": 1}, [6], [22]))
    assert runner.model.model.layers[1].self_attn.written == [[8, 9, 10, 11, 11, 20], [21]]


def test_narrow_sums_and_truncation_are_those_of_the_reference_side(faults: Any) -> None:
    from assay_inside import faults_modules

    from accuracy_core.faults import norms

    values = torch.randn(5, 64, generator=torch.Generator().manual_seed(1)) * 3
    assert torch.equal(
        faults_modules.narrow_sum(values**2, torch.bfloat16), norms.narrow_sum(values**2, torch.bfloat16)
    )
    assert torch.equal(faults_modules.truncate(values, 7), norms.truncate(values, 7))
    assert (faults_modules.truncate(values, 7).abs() <= values.abs()).all()
    assert torch.equal(norms.truncate(values, 7), norms.truncate(values, 7).to(torch.bfloat16).float())
