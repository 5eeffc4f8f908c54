"""One tiny calibration for all tests that look at it."""

from __future__ import annotations

import pytest

from accuracy_core.calibration import Inputs, Source, Subject, calibrate

INPUTS = Inputs(seeds=20, tokens=8, rows=4)


def tiny_config(**settings):
    from transformers import LlamaConfig

    return LlamaConfig(
        **{
            "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 128, "max_position_embeddings": 64, **settings,
        }
    )  # fmt: skip


@pytest.fixture(scope="session")
def subject():
    return Subject(Source(config=tiny_config()), "tiny", "f" * 64)


@pytest.fixture(scope="session")
def measured(subject):
    """A full calibration of a seeded random model of two layers, and the steps that it told."""
    steps = []
    found = calibrate(subject, INPUTS, versions={"torch": "2"}, progress=lambda *step: steps.append(step))
    return found, steps
