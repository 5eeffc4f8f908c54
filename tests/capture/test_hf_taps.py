"""Taking and putting tensors in a transformers model."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from accuracy_core.capture.hf_taps import HfTaps, available_taps
from accuracy_core.capture.model import TensorCaptureModel
from accuracy_core.capture.rows import TapValue
from accuracy_core.errors import ConfigurationError, InputMismatchError
from tests.capture.conftest import FORCED, IDS, PROMPT, small_model

_ATTENTION = "model.layers.1.self_attn"


@pytest.fixture(scope="module")
def tapped(llama: Any) -> dict[str, torch.Tensor]:
    return TensorCaptureModel(llama).capture(PROMPT, FORCED, stepwise=False)


def test_every_tap_of_a_llama_is_listed(llama: Any) -> None:
    taps = available_taps(llama)
    inside = {tap.removeprefix("model.layers.1.") for tap in taps if tap.startswith("model.layers.1.")}
    assert inside == {
        "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.query",
        "self_attn.key", "self_attn.value", "self_attn.attn", "self_attn.o_proj", "self_attn", "residual_mid",
        "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.act", "mlp.down_proj", "mlp",
    }  # fmt: skip
    assert {tap for tap in taps if "layers" not in tap} == {"model.embed_tokens", "model.norm", "lm_head"}
    assert "model.layers.1" in taps


def test_taps_come_in_order_of_execution(tapped: dict[str, torch.Tensor]) -> None:
    order = list(tapped)
    chain = ["q_proj", "query", "attn", "o_proj"]
    places = [order.index(f"{_ATTENTION}.{name}") for name in chain] + [order.index("model.layers.1.residual_mid")]
    assert places == sorted(places)
    assert order[0] == "model.embed_tokens"
    assert order[-1] == "lm_head"


def test_values_agree_with_the_model_computed_by_hand(llama: Any, tapped: dict[str, torch.Tensor]) -> None:
    """Rotary embedding, softmax attention and residual sums, written out for layer 1."""
    q, k, v = (tapped[f"{_ATTENTION}.{name}_proj"] for name in "qkv")
    heads = [rows.double().reshape(len(IDS), -1, 16) for rows in (q, k, v)]
    positions = torch.arange(len(IDS), dtype=torch.float64)[:, None]
    angle = positions * 10000.0 ** -(torch.arange(8, dtype=torch.float64) / 8)

    def rotate(rows: torch.Tensor) -> torch.Tensor:
        a, b = rows[..., :8], rows[..., 8:]
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    query, key, value = rotate(heads[0]), rotate(heads[1]), heads[2]
    assert torch.allclose(tapped[f"{_ATTENTION}.query"].double(), query.flatten(1), atol=1e-4)
    assert torch.allclose(tapped[f"{_ATTENTION}.key"].double(), key.flatten(1), atol=1e-4)
    mask = torch.full((len(IDS), len(IDS)), float("-inf"), dtype=torch.float64).triu(1)
    outputs = []
    for head in range(4):
        scores = query[:, head] @ key[:, head // 2].T / 4 + mask
        outputs.append(scores.softmax(-1) @ value[:, head // 2])
    assert torch.allclose(tapped[f"{_ATTENTION}.attn"].double(), torch.cat(outputs, -1), atol=1e-4)
    middle = tapped["model.layers.0"] + tapped[f"{_ATTENTION}.o_proj"]
    assert torch.allclose(tapped["model.layers.1.residual_mid"], middle, atol=1e-5)
    gate, up = tapped["model.layers.1.mlp.gate_proj"], tapped["model.layers.1.mlp.up_proj"]
    assert torch.allclose(tapped["model.layers.1.mlp.act"], torch.nn.functional.silu(gate) * up, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt-oss", "deepseek-v2"])
def test_prefill_and_decode_steps_give_the_rows_of_one_forward(name: str) -> None:
    capture = TensorCaptureModel(small_model(name))
    once, steps = (capture.capture(PROMPT, FORCED, stepwise=stepwise) for stepwise in (False, True))
    assert set(once) == set(steps) == set(capture.taps)
    for tap, rows in once.items():
        assert rows.shape[0] == len(IDS), tap
        assert torch.allclose(rows, steps[tap], atol=2e-4 * float(rows.abs().max())), tap


def test_replaced_rows_flow_on_and_the_computed_ones_are_recorded(llama: Any, tapped: dict[str, torch.Tensor]) -> None:
    new = tapped["model.layers.0"] + 1
    with torch.inference_mode(), HfTaps(llama, ["model.layers.0", "lm_head"], replace={"model.layers.0": new}) as taps:
        logits = llama(input_ids=torch.tensor([IDS]), use_cache=False).logits[0]
        recorded = taps.collect()
    assert torch.equal(recorded["model.layers.0"], tapped["model.layers.0"])
    assert torch.equal(recorded["lm_head"], logits)
    assert not torch.allclose(logits, tapped["lm_head"], atol=0.1)
    with torch.inference_mode():  # without hooks the model is what it was
        assert torch.equal(llama(input_ids=torch.tensor([IDS])).logits[0], tapped["lm_head"])


def test_parts_of_rows_and_columns_are_replaced(llama: Any, tapped: dict[str, torch.Tensor]) -> None:
    value = TapValue(torch.zeros(2, 16), first_row=3, columns=(16, 32))
    with torch.inference_mode(), HfTaps(llama, [], replace={f"{_ATTENTION}.attn": value}) as taps:
        with HfTaps(llama, [f"{_ATTENTION}.o_proj"]) as inner:
            llama(input_ids=torch.tensor([IDS]), use_cache=False)
            got = inner.collect()[f"{_ATTENTION}.o_proj"]
        assert taps.collect() == {}
    attn = tapped[f"{_ATTENTION}.attn"].clone()
    attn[3:5, 16:32] = 0
    assert torch.allclose(got, attn @ llama.model.layers[1].self_attn.o_proj.weight.T, atol=1e-5)


def test_keys_put_in_prefill_stay_in_the_cache(llama: Any, tapped: dict[str, torch.Tensor]) -> None:
    key = torch.zeros_like(tapped[f"{_ATTENTION}.key"])[: len(PROMPT)]
    tap = f"{_ATTENTION}.attn"
    with torch.inference_mode(), HfTaps(llama, [tap], replace={f"{_ATTENTION}.key": key}) as taps:
        cache = llama(input_ids=torch.tensor([PROMPT]), use_cache=True).past_key_values
        llama(input_ids=torch.tensor([[FORCED[0]]]), past_key_values=cache)
        last = taps.collect()[tap][-1].double()
    assert float(cache.layers[1].keys[0, :, : len(PROMPT)].abs().max()) == 0.0
    query = tapped[f"{_ATTENTION}.query"][len(PROMPT)].double().reshape(4, 16)
    own = tapped[f"{_ATTENTION}.key"][len(PROMPT)].double().reshape(2, 16)
    values = tapped[f"{_ATTENTION}.value"][: len(PROMPT) + 1].double().reshape(-1, 2, 16)
    for head in range(4):
        scores = torch.zeros(len(PROMPT) + 1, dtype=torch.float64)
        scores[-1] = query[head] @ own[head // 2] / 4
        expected = scores.softmax(-1) @ values[:, head // 2]
        assert torch.allclose(last.reshape(4, 16)[head], expected, atol=1e-4)


def test_what_the_cache_does_to_keys_shows_in_attention_alone(llama: Any, tapped: dict[str, torch.Tensor]) -> None:
    from accuracy_core.faults import FAULTS, resolve_fault
    from accuracy_core.schemas import FaultSpec

    model = small_model("llama")
    FAULTS["kv-scale"].inject_hf(model, resolve_fault(FaultSpec(name="kv-scale"), num_layers=2))
    broken = TensorCaptureModel(model).capture(PROMPT, FORCED)
    assert torch.allclose(broken[f"{_ATTENTION}.key"], tapped[f"{_ATTENTION}.key"], atol=1e-4)
    assert not torch.allclose(broken[f"{_ATTENTION}.attn"], tapped[f"{_ATTENTION}.attn"], atol=1e-2)


@pytest.mark.parametrize(("name", "router"), [("mixtral", "gate"), ("qwen3-moe", "gate"), ("gpt-oss", "router")])
def test_experts_follow_replaced_router_logits(name: str, router: str) -> None:
    model = small_model(name)
    block = "model.layers.0.mlp"
    before = TensorCaptureModel(model).capture(PROMPT, FORCED, stepwise=False)
    swapped = before[f"{block}.{router}"].flip(-1)  # the last expert gets the first one's logit
    with torch.inference_mode(), HfTaps(model, [f"{block}.experts"], replace={f"{block}.{router}": swapped}) as taps:
        model(input_ids=torch.tensor([IDS]), use_cache=False)
        after = taps.collect()[f"{block}.experts"]
    moved = (
        swapped.topk(2).indices.sort(-1).values != before[f"{block}.{router}"].topk(2).indices.sort(-1).values
    ).any(-1)
    assert bool(moved.any())
    changed = (after - before[f"{block}.experts"]).abs().amax(-1) > 1e-3
    assert bool((changed | ~moved).all())


def test_more_than_one_sequence_is_refused(llama: Any) -> None:
    with HfTaps(llama, ["model.norm"]), pytest.raises(InputMismatchError, match="one sequence"):
        llama(input_ids=torch.tensor([IDS, IDS]))


def test_an_unknown_tap_names_its_neighbours(llama: Any) -> None:
    with pytest.raises(ConfigurationError, match="no tap") as caught:
        HfTaps(llama, ["model.layers.1.mlp.down_projection"])
    assert "model.layers.1.mlp.down_proj" in caught.value.fix


def test_rows_of_another_width_are_refused_with_both_shapes(llama: Any) -> None:
    with (
        HfTaps(llama, [], replace={"model.norm": torch.zeros(3, 65)}),
        pytest.raises(InputMismatchError, match=r"\(3, 65\).*\(14, 64\)"),
    ):
        llama(input_ids=torch.tensor([IDS]))
