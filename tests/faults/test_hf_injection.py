"""Faults in a Hugging Face model: each shows where its registry entry says, and only there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from accuracy_core.errors import ConfigurationError
from accuracy_core.faults import FAULTS, resolve_fault
from accuracy_core.faults.kv_slot import ShiftedCache, shifted_slot
from accuracy_core.models import embedded_model
from accuracy_core.schemas import FaultSpec

PROMPT = [0, 53, 30, 224, 24, 27]
FORCED = [224, 26, 1, 14, 28, 32, 20, 25]


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(embedded_model(), dtype=torch.float32).eval()


@torch.inference_mode()
def decode(model: Any) -> torch.Tensor:
    """Rows (tokens, vocab), teacher-forced with a KV cache."""
    rows, cache, step = [], None, torch.tensor([PROMPT])
    for token in FORCED:
        output = model(input_ids=step, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        rows.append(output.logits[0, -1])
        step = torch.tensor([[token]])
    return torch.stack(rows)


def outputs_of(model: Any, names: list[str]) -> dict[str, torch.Tensor]:
    """Outputs of submodules in one forward over prompt and trace."""
    found: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Any:
        return lambda module, args, output: found.__setitem__(
            name, (output[0] if isinstance(output, tuple) else output).clone()
        )

    handles = [model.get_submodule(name).register_forward_hook(keep(name)) for name in names]
    with torch.inference_mode():
        model(input_ids=torch.tensor([PROMPT + FORCED]))
    for handle in handles:
        handle.remove()
    return found


def inject(model: Any, **fields: Any) -> Any:
    fault = resolve_fault(FaultSpec(**fields))
    return FAULTS[fault.name].inject_hf(model, fault)


def test_mlp_scale_scales_one_mlp(model: Any) -> None:
    names = [f"model.layers.{layer}.mlp" for layer in range(3)]
    clean = outputs_of(model, names)
    remove = inject(model, name="mlp-scale", layer=1, strength=1.05)
    faulty = outputs_of(model, names)
    remove()
    assert torch.equal(clean[names[0]], faulty[names[0]])
    assert torch.allclose(faulty[names[1]], clean[names[1]] * 1.05)
    assert not torch.allclose(clean[names[2]], faulty[names[2]])
    assert torch.equal(outputs_of(model, names)[names[1]], clean[names[1]]), "taken out again"


def test_mlp_scale_changes_every_row(model: Any) -> None:
    clean = decode(model)
    remove = inject(model, name="mlp-scale")
    faulty = decode(model)
    remove()
    assert (clean != faulty).any(-1).all()
    assert torch.equal(decode(model), clean)


def test_mlp_scale_from_a_position_on(model: Any) -> None:
    clean = decode(model)
    remove = inject(model, name="mlp-scale", position=len(PROMPT) + 2)
    faulty = decode(model)
    remove()
    assert (clean != faulty).any(-1).tolist() == [False] * 3 + [True] * 5


def test_kv_slot_leaves_prefill_and_changes_decode(model: Any) -> None:
    clean = decode(model)
    remove = inject(model, name="kv-slot")
    faulty = decode(model)
    again = decode(model)
    remove()
    assert torch.equal(clean[0], faulty[0])
    assert (clean[1:] != faulty[1:]).any(-1).all()
    assert torch.equal(faulty, again), "nothing may leak from one sequence into the next"
    assert torch.equal(decode(model), clean)


def test_kv_slot_from_a_position_on(model: Any) -> None:
    clean = decode(model)
    remove = inject(model, name="kv-slot", position=len(PROMPT) + 3)
    faulty = decode(model)
    remove()
    assert (clean != faulty).any(-1).tolist() == [False] * 4 + [True] * 4


@pytest.mark.parametrize(
    ("position", "slot"), [(0, 1), (14, 15), (15, 0), (16, 17), (31, 16)], ids=lambda value: str(value)
)
def test_slots_of_sixteen(position: int, slot: int) -> None:
    assert shifted_slot(position, 1, 16) == slot


def test_shifted_cache_by_hand() -> None:
    """Blocks of 4, a prompt of 2 tokens, K of token p is p + 1. Slots as attention reads them, step by step.

    Token 2 goes to slot 3, so slot 2 is empty. Token 3 goes to slot 0 (wrap), over the prompt's first, and reads slot 3
    with token 2 in it. Token 4 goes to slot 5, slot 4 is empty.
    """
    cache = DynamicCache()
    shifted = ShiftedCache(shift=1, block_size=4, first_position=0).before(cache)

    def write(*values: float) -> list[float]:
        tokens = torch.tensor(values).view(1, 1, -1, 1)
        keys, held = shifted.update(tokens, -tokens, 0)
        assert torch.equal(keys, -held)
        read: list[float] = keys.flatten().tolist()
        return read

    assert write(1, 2) == [1, 2]
    assert write(3) == [1, 2, 0]
    assert write(4) == [4, 2, 0, 3]
    assert write(5) == [4, 2, 0, 3, 0]
    assert write(6) == [4, 2, 0, 3, 0, 5]
    assert shifted.get_seq_length(0) == 6


def test_layer_that_is_not_there(model: Any) -> None:
    with pytest.raises(ConfigurationError, match="the model has 4"):
        inject(model, name="mlp-scale", layer=4)
