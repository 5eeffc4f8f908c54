"""FP8 checkpoints against a float64 computation over the same bytes, written out here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from accuracy_core.errors import ConfigurationError, NotMeasuredError
from accuracy_core.goldens import (
    generate_three_way_reference_logits,
    get_cached_reference_goldens,
    load_reference_model,
)
from accuracy_core.goldens.fp8_checkpoint import dequantize
from accuracy_core.models import embedded_model

PROMPTS = [[1, 20, 30], [1, 40, 50, 60]]
CHANNEL = {
    "quant_method": "compressed-tensors", "format": "float-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}},
}  # fmt: skip
BLOCK = {"quant_method": "fp8", "weight_block_size": [16, 32]}


def e4m3_values() -> torch.Tensor:
    """All 256 values from the definition: 1 sign, 4 exponent (bias 7), 3 mantissa bits; no infinities."""
    values = []
    for byte in range(256):
        sign, exponent, mantissa = (-1.0 if byte >> 7 else 1.0), byte >> 3 & 15, byte & 7
        value = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        values.append(sign * (float("nan") if exponent == 15 and mantissa == 7 else value))
    return torch.tensor(values, dtype=torch.float64)


def quantise(folder: Path, quantization: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Make the linear layers of the checkpoint FP8; the float64 values that their bytes stand for, by name."""
    state, exact = load_file(folder / "model.safetensors"), {}
    for name, weight in list(state.items()):
        if not name.endswith("_proj.weight"):
            continue
        wide = weight.float()
        if quantization is CHANNEL:
            scale = wide.abs().amax(1, keepdim=True) / 448
            grown, end = scale.expand_as(wide), "weight_scale"
        else:
            rows, columns = -(-wide.shape[0] // 16), -(-wide.shape[1] // 32)
            scale = torch.rand(rows, columns) * 1e-3 + 1e-3
            grown = scale.repeat_interleave(16, 0).repeat_interleave(32, 1)[: wide.shape[0], : wide.shape[1]]
            end = "weight_scale_inv"
        state[name] = (wide / grown).clamp(-448, 448).to(torch.float8_e4m3fn)
        state[f"{name.removesuffix('weight')}{end}"] = scale
        bytes_ = state[name].view(torch.uint8).long()
        exact[name] = e4m3_values()[bytes_] * grown.double()
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}))
    return exact


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(embedded_model(), tmp_path / "fp8"))


@pytest.mark.parametrize("quantization", [CHANNEL, BLOCK], ids=["channel", "block"])
def test_reference_is_that_of_the_same_bytes(quantization: dict[str, Any], folder: Path) -> None:
    model = load_reference_model(str(folder), torch.float32).double().eval()
    plain = generate_three_way_reference_logits(str(folder), "bfloat16", 4, PROMPTS)
    exact = quantise(folder, quantization)
    with torch.no_grad():
        for name, value in exact.items():
            model.get_parameter(name).copy_(value)
    result = generate_three_way_reference_logits(str(folder), "bfloat16", 4, PROMPTS)
    for index, prompt in enumerate(PROMPTS):
        tokens = result["token_ids"][index]
        with torch.no_grad():
            rows = model(input_ids=torch.tensor([prompt + tokens[:-1]])).logits[0, len(prompt) - 1 :]
        fp32 = result["fp32_logits"][index][:, 0]
        assert (fp32 - rows).abs().max() <= 1e-5 * rows.abs().max()
        assert rows.argmax(-1).tolist() == tokens
        # what not dequantising the same bytes would cost, and BF16 rounding: far apart
        narrow = result["dtype_logits"][index][:, 0]
        assert (narrow - rows).abs().max() <= 0.05 * rows.abs().max()
        assert (plain["fp32_logits"][index][0] - fp32[:1]).abs().max() > 1e-3 * rows.abs().max()


def test_scales_are_applied_as_they_are_laid_out() -> None:
    weight = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).to(torch.float8_e4m3fn)
    assert dequantize(weight, torch.tensor(0.5)).tolist() == [[0.5, 1.0, 1.5], [2.0, 2.5, 3.0]]
    assert dequantize(weight, torch.tensor([1.0, 10.0])).tolist() == [[1.0, 2.0, 3.0], [40.0, 50.0, 60.0]]
    blocks = torch.tensor([[1.0, 10.0], [100.0, 1000.0]])
    assert dequantize(weight, blocks, (1, 2)).tolist() == [[1.0, 2.0, 30.0], [400.0, 500.0, 6000.0]]
    with pytest.raises(ConfigurationError, match="scale of shape"):
        dequantize(weight, torch.ones(3))


def test_weight_without_scale_is_not_measured(folder: Path) -> None:
    quantise(folder, CHANNEL)
    state = load_file(folder / "model.safetensors")
    gone = next(name for name in state if name.endswith("weight_scale"))
    del state[gone]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(NotMeasuredError, match="has no scale"):
        generate_three_way_reference_logits(str(folder), "bfloat16", 2, PROMPTS)


def test_other_quantisation_is_not_measured(folder: Path) -> None:
    integers = {**CHANNEL, "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}}}
    quantise(folder, integers)
    with pytest.raises(NotMeasuredError, match="quantised"):
        generate_three_way_reference_logits(str(folder), "bfloat16", 2, PROMPTS)


def test_goldens_of_fp8_checkpoints_are_cached(folder: Path, cache: Path) -> None:
    quantise(folder, CHANNEL)
    sources = [
        get_cached_reference_goldens("fp8", folder, prompts=PROMPTS, output_length=2, cache_dir=cache).source
        for _ in range(2)
    ]
    assert sources == ["computed", "disk"]
