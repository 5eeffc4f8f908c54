"""Weights that do not fit stay on the disk; the numbers are the same and the user is told."""

from __future__ import annotations

import logging
from functools import partial

import pytest
import torch

from accuracy_core.goldens import generate_three_way_reference_logits, load_reference_model
from accuracy_core.goldens.memory import peak_memory_gb, weight_bytes
from accuracy_core.models import embedded_model

CHECKPOINT = str(embedded_model())


def test_bytes_of_the_weights_are_those_of_the_loaded_model() -> None:
    model = load_reference_model(CHECKPOINT, torch.float32)
    assert weight_bytes(CHECKPOINT, torch.float32) == sum(p.numel() * 4 for p in model.parameters())
    assert weight_bytes(CHECKPOINT, torch.bfloat16) == sum(p.numel() * 2 for p in model.parameters())
    assert weight_bytes("/no/such/folder", torch.float32) is None


def test_peak_memory_is_at_least_what_is_held_now() -> None:
    import psutil

    block = torch.ones(10_000_000)
    held = psutil.Process().memory_info().rss / 1e9
    assert held - 0.01 <= peak_memory_gb() < psutil.virtual_memory().total / 1e9
    assert block.sum() == 10_000_000


def test_offloaded_model_gives_the_same(caplog: pytest.LogCaptureFixture) -> None:
    prompts = [[1, 20, 30], [1, 40, 50, 60]]
    whole = generate_three_way_reference_logits(CHECKPOINT, "bfloat16", 5, prompts)
    half = (weight_bytes(CHECKPOINT, torch.float32) or 0) // 2
    placed: list[set[str]] = []

    def loader(checkpoint: str, dtype: torch.dtype, *, config: object) -> object:
        model = partial(load_reference_model, memory_limit=half)(checkpoint, dtype, config=config)
        placed.append({str(place) for place in (getattr(model, "hf_device_map", None) or {}).values()})
        return model

    with caplog.at_level(logging.WARNING, logger="accuracy_core.goldens"):
        parts = generate_three_way_reference_logits(CHECKPOINT, "bfloat16", 5, prompts, model_loader=loader)
    assert "disk" in placed[0]
    assert "read from the disk" in caplog.text
    assert parts["token_ids"] == whole["token_ids"]
    for a, b in zip(parts["fp32_logits"], whole["fp32_logits"], strict=True):
        assert torch.equal(a, b)
    for a, b in zip(parts["dtype_logits"], whole["dtype_logits"], strict=True):
        assert (a - b).abs().max() <= 0.03 * b.abs().max()  # other kernels where layers are read at each use
