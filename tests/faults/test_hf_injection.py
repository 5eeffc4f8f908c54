"""Faults in a Hugging Face model: each changes what the model says, shows where its registry entry says, and goes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from accuracy_core.errors import ConfigurationError
from accuracy_core.faults import FAULTS, resolve_fault
from accuracy_core.faults.fault import SAMPLER
from accuracy_core.faults.kv_cache import shifted_slot, shifting_cache, short_stride_slot
from accuracy_core.models.architectures import ARCHITECTURES, architecture_checkpoint
from accuracy_core.schemas import FaultSpec, Phase

#: longer than a KV block of 16 and than a window of 16
PROMPT = [0, 53, 30, 224, 24, 27, 61, 9, 118, 77, 200, 41, 16, 33, 90, 5, 187, 64, 12, 150]
FORCED = [224, 26, 14, 28]
#: faults around the model: they change no row of a forced replay
_NOT_IN_ROWS = ("sampler-default",)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("architectures")
    return lambda name: architecture_checkpoint(name, cache_dir=folder)


@pytest.fixture(scope="session")
def models(checkpoints: Callable[[str], Path]) -> Callable[[str], Any]:
    """`models(architecture)`: the FP32 model, loaded once."""

    @cache
    def load(name: str) -> Any:
        torch.set_num_threads(1)
        eager = {"attn_implementation": "eager"} if name == "gemma2" else {}
        return AutoModelForCausalLM.from_pretrained(checkpoints(name), dtype=torch.float32, **eager).eval()

    return load


@pytest.fixture
def model(models: Callable[[str], Any]) -> Any:
    return models("embedded")


@torch.inference_mode()
def decode(model: Any, prompt: list[int] = PROMPT, forced: list[int] = FORCED) -> torch.Tensor:
    """Rows (tokens, vocab), teacher-forced with a KV cache."""
    rows, cache, step = [], None, torch.tensor([prompt])
    for token in forced:
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
    fault = resolve_fault(FaultSpec(**fields), config=model.config.to_dict())
    return FAULTS[fault.name].inject_hf(model, fault)


def check_every_fault(model: Any) -> None:
    """Every fault that applies changes the rows of the phase it names, and is taken out again without a trace."""
    clean = decode(model)
    config = model.config.to_dict()
    for name, fault in FAULTS.items():
        if fault.why_not(config, "transformers") or name in _NOT_IN_ROWS:
            continue
        remove = inject(model, name=name)
        changed = (decode(model) != clean).any(-1).tolist()
        remove()
        assert changed[1:] == [True] * (len(FORCED) - 1), f"{name}: decode"
        assert changed[0] is (fault.expected_phase is not Phase.DECODE), f"{name}: prefill"
        assert torch.equal(decode(model), clean), f"{name}: still there"


@pytest.mark.parametrize("architecture", ["embedded"])
def test_every_fault_changes_what_the_model_says(architecture: str, models: Callable[[str], Any]) -> None:
    check_every_fault(models(architecture))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name != "embedded"])
def test_every_fault_changes_every_architecture(architecture: str, models: Callable[[str], Any]) -> None:
    check_every_fault(models(architecture))


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


@pytest.mark.parametrize("name", ["mlp-scale", "nan-module", "kv-slot"])
def test_faults_from_a_position_on(model: Any, name: str) -> None:
    clean = decode(model)
    remove = inject(model, name=name, position=len(PROMPT) + 1)
    faulty = decode(model)
    remove()
    assert (clean != faulty).any(-1).tolist() == [False, False, True, True]


def test_nothing_of_a_shifted_slot_leaks_into_the_next_sequence(model: Any) -> None:
    remove = inject(model, name="kv-slot")
    first, second = decode(model), decode(model)
    remove()
    assert torch.equal(first, second)


def test_a_shifted_window_needs_a_long_text(models: Callable[[str], Any]) -> None:
    model = models("mistral-window")
    short, long = [PROMPT[:12], PROMPT[:16]]
    clean = decode(model, short, FORCED[:1]), decode(model, long, FORCED[:1])
    remove = inject(model, name="sliding-window-shift")
    faulty = decode(model, short, FORCED[:1]), decode(model, long, FORCED[:1])
    remove()
    assert torch.equal(clean[0], faulty[0])
    assert not torch.equal(clean[1], faulty[1]), "token 16 of 16 lost the first"


def test_the_wrong_sampler_is_the_models_own(model: Any) -> None:
    remove = inject(model, name="sampler-default")
    assert getattr(model, SAMPLER)(torch.tensor([0.1, 3.0, 2.0])) == 2
    remove()
    assert not hasattr(model, SAMPLER)


@pytest.mark.parametrize(
    ("position", "slot"), [(0, 1), (14, 15), (15, 0), (16, 17), (31, 16)], ids=lambda value: str(value)
)
def test_shifted_slots_of_sixteen(position: int, slot: int) -> None:
    assert shifted_slot(position, 1, 16) == slot


@pytest.mark.parametrize(("position", "slot"), [(0, 0), (15, 15), (16, 15), (17, 16), (32, 30)])
def test_slots_with_a_stride_of_fifteen(position: int, slot: int) -> None:
    assert short_stride_slot(position, 1, 16) == slot


def test_shifted_cache_by_hand() -> None:
    """Blocks of 4, a prompt of 2 tokens, K of token p is p + 1. Slots as attention reads them, step by step.

    Token 2 goes to slot 3, so slot 2 is empty. Token 3 goes to slot 0 (wrap), over the prompt's first, and reads slot 3
    with token 2 in it. Token 4 goes to slot 5, slot 4 is empty.
    """
    cache = DynamicCache()
    shifted = shifting_cache(shift=1, block_size=4).before(cache)

    def write(*values: float) -> list[float]:
        tokens = torch.tensor(values).view(1, 1, -1, 1)
        keys, held = shifted.update(tokens, -tokens, 0)
        assert torch.equal(keys, -held)
        read: list[float] = keys.flatten().tolist()
        assert cache.layers[0].keys.flatten().tolist() == read, "the cache shows what attention read"
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
