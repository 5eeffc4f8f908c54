"""FP8 KV caches against a cache that rounds what it is given, and rounding against the definition of e4m3."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import DynamicCache

from accuracy_core.errors import NotMeasuredError
from accuracy_core.goldens import (
    generate_three_way_reference_logits,
    get_cached_reference_goldens,
    load_reference_model,
)
from accuracy_core.goldens.fp8_kv import fp8_kv_cache, kv_scales, round_e4m3
from accuracy_core.goldens.teacher_forcing import forced_logits
from accuracy_core.models import embedded_model

CHECKPOINT = str(embedded_model())
PROMPTS = [[1, 20, 30, 40, 50], [1, 60]]
TOKENS = [[5, 6, 7, 8, 9, 10]] * 2


def finite_e4m3() -> torch.Tensor:
    """Values of the 127 codes from 0 to 448, ascending, from the definition: exponent bias 7, 3 mantissa bits."""
    codes = range(127)
    return torch.tensor(
        [c / 8 * 2.0**-6 if c < 8 else (1 + c % 8 / 8) * 2.0 ** ((c >> 3) - 7) for c in codes], dtype=torch.float64
    )


def nearest_e4m3(values: torch.Tensor) -> torch.Tensor:
    """Round to nearest, ties to the even code, in float64; saturating."""
    table, size = finite_e4m3(), values.double().abs()
    above = torch.searchsorted(table, size.reshape(-1)).clamp(max=126)
    below = (above - 1).clamp(min=0)
    flat = size.reshape(-1)
    to_below, to_above = flat - table[below], table[above] - flat
    take_below = (to_below < to_above) | ((to_below == to_above) & (below % 2 == 0))
    return (torch.where(take_below, table[below], table[above]).reshape(size.shape)) * values.double().sign()


def test_rounding_is_that_of_the_definition() -> None:
    table = finite_e4m3()
    middles = (table[1:] + table[:-1]) / 2
    values = torch.cat([table, middles, middles * 1.001, middles * 0.999, torch.tensor([500.0, 1e9])]).float()
    values = torch.cat([values, -values])
    assert torch.equal(round_e4m3(values).double(), nearest_e4m3(values))
    assert torch.equal(round_e4m3(values * 0.25, 0.25).double(), nearest_e4m3(values) * 0.25)
    assert round_e4m3(values.bfloat16()).dtype is torch.bfloat16


class RoundingCache(DynamicCache):
    """Hands the prompt's pass what it computed, and every later step the rounded keys and values."""

    def __init__(self, scales: dict[tuple[int, str], float]) -> None:
        super().__init__()
        self.scales = scales

    def update(self, key: Any, value: Any, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        prefill = self.get_seq_length(layer_idx) == 0
        everything = super().update(key, value, layer_idx, *args, **kwargs)
        if prefill:
            return everything
        k, v = (self.scales.get((layer_idx, name), 1.0) for name in "kv")
        return (nearest_e4m3(everything[0] / k) * k).to(key.dtype), (nearest_e4m3(everything[1] / v) * v).to(key.dtype)


@torch.inference_mode()
def decoded(model: Any, prompt: list[int], tokens: list[int], scales: dict[tuple[int, str], float]) -> torch.Tensor:
    cache, rows, step = RoundingCache(scales), [], torch.tensor([prompt])
    for token in tokens:
        rows.append(model(input_ids=step, past_key_values=cache, use_cache=True).logits[0, -1])
        step = torch.tensor([[token]])
    return torch.stack(rows)


@pytest.mark.parametrize("scales", [{}, {(0, "k"): 0.25, (0, "v"): 2.0, (1, "k"): 0.125}], ids=["one", "given"])
def test_one_forward_is_decoding_with_a_rounded_cache(scales: dict[tuple[int, str], float]) -> None:
    """In float64, where rounding to e4m3 cannot flip through arithmetic noise."""
    model = load_reference_model(CHECKPOINT, torch.float32, attn_implementation="sdpa").double().eval()
    for prompt, tokens in zip(PROMPTS, TOKENS, strict=True):
        expected = decoded(model, prompt, tokens, scales)
        with fp8_kv_cache(model, len(prompt), scales):
            rows = forced_logits(model, prompt, tokens)
        plain = forced_logits(model, prompt, tokens)
        assert (rows - expected).abs().max() <= 1e-6 * expected.abs().max()
        assert torch.equal(rows[0], plain[0])  # the prompt's own attention sees no rounding
        assert (rows[1:] - plain[1:]).abs().max() > 1e-3 * plain.abs().max()


def test_only_the_target_side_has_the_cache_and_the_key_knows(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"forced_token_ids": TOKENS}
    plain = generate_three_way_reference_logits(CHECKPOINT, "bfloat16", 6, PROMPTS, **arguments)
    fp8 = generate_three_way_reference_logits(CHECKPOINT, "bfloat16", 6, PROMPTS, kv_cache_dtype="fp8", **arguments)
    for index in range(2):
        assert torch.allclose(fp8["fp32_logits"][index], plain["fp32_logits"][index], rtol=0, atol=1e-4)
        assert torch.equal(fp8["dtype_logits"][index][0], plain["dtype_logits"][index][0])
        assert not torch.equal(fp8["dtype_logits"][index][1:], plain["dtype_logits"][index][1:])
    keys = [
        get_cached_reference_goldens(
            "m", CHECKPOINT, prompts=PROMPTS, output_length=6, kv_cache_dtype=name, cache_dir=tmp_path, **arguments
        ).key
        for name in ("auto", "fp8", "fp8_e4m3")
    ]
    assert keys[0] != keys[1] == keys[2]


def test_scales_come_from_the_checkpoint(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(embedded_model(), tmp_path / "scaled"))
    state = load_file(folder / "model.safetensors")
    state |= {"model.layers.1.self_attn.k_scale": torch.tensor(0.5), "model.layers.0.self_attn.v_scale": torch.ones(1)}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    assert kv_scales(str(folder)) == {(1, "k"): 0.5, (0, "v"): 1.0}
    assert kv_scales(CHECKPOINT) == {}


def test_attention_that_goes_another_way_is_not_measured() -> None:
    model = load_reference_model(CHECKPOINT, torch.float32, attn_implementation="eager").eval()
    with pytest.raises(NotMeasuredError, match="reached 0 of"), fp8_kv_cache(model, 2, {}):
        forced_logits(model, [1, 2], [3, 4])
