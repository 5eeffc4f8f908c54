"""Rows of the real vLLM on the embedded model, CPU. Bit equality holds because one request runs at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from accuracy_core.schemas import ReplayRequest

from .conftest import Replayed

pytestmark = pytest.mark.slow


def test_forced_decode_follows_the_trace_exactly(
    replayed: Callable[..., Replayed], traces: list[ReplayRequest], tokenizer: Any
) -> None:
    clean = replayed()
    assert clean.capabilities.forced_decode
    assert clean.capabilities.raw_logits
    for request in traces:
        result = clean.results[request.request_id]
        assert result.token_ids == request.forced_token_ids
        assert result.route == "forced_decode"
        assert clean.rows[request.request_id].shape == (len(request.forced_token_ids), 260)
    inside = [request for request in traces if tokenizer.eos_token_id in request.forced_token_ids[:-1]]
    assert len(inside) >= 2, "the traces must hold EOS in the middle"
    own_choice = [clean.results[request.request_id].argmax_ids for request in traces]
    assert any(a != r.forced_token_ids for a, r in zip(own_choice, traces, strict=True)), "forcing was never needed"


def test_rows_are_bit_equal_to_raw_logits(replayed: Callable[..., Replayed], traces: list[ReplayRequest]) -> None:
    """The other engine has no processor of ours: its rows are vLLM's `logprobs=-1` with `logprobs_mode=raw_logits`."""
    recorded, official = replayed(), replayed(route="reprompt")
    for request in traces:
        assert official.results[request.request_id].route == "reprompt"
        assert not official.results[request.request_id].shift_free
        assert torch.equal(recorded.rows[request.request_id], official.rows[request.request_id]), request.request_id


def test_reprompting_emits_the_engines_own_choice_at_a_divergence(
    replayed: Callable[..., Replayed], traces: list[ReplayRequest]
) -> None:
    official = replayed(route="reprompt")
    assert not official.capabilities.forced_decode
    for request in traces:
        result = official.results[request.request_id]
        assert len(result.token_ids) == len(request.forced_token_ids)
        assert result.token_ids == result.argmax_ids


def test_fp32_gives_the_reference_text(
    replayed: Callable[..., Replayed], questions: list[ReplayRequest], tokenizer: Any
) -> None:
    """vLLM in FP32 against HF in FP32, greedy, 50 held-out samples."""
    from transformers import AutoModelForCausalLM

    from accuracy_core.models import embedded_model

    model = AutoModelForCausalLM.from_pretrained(embedded_model(), dtype=torch.float32)
    target = replayed(dtype="float32")
    assert len(questions) == 50
    for request in questions:
        prompt = torch.tensor([request.prompt_token_ids])
        with torch.inference_mode():
            full = model.generate(prompt, max_new_tokens=32, do_sample=False, eos_token_id=None)[0].tolist()
        expected = tokenizer.decode(full[prompt.shape[1] :])
        assert tokenizer.decode(target.results[request.request_id].token_ids) == expected


def test_mlp_scale_shows_in_the_first_row(replayed: Callable[..., Replayed], traces: list[ReplayRequest]) -> None:
    clean, faulty = replayed(), replayed(fault="mlp-scale")
    for request in traces:
        name = request.request_id
        different = (clean.rows[name] != faulty.rows[name]).any(-1)
        assert different.all(), f"{name}: rows {different.tolist()}"


def test_kv_slot_leaves_the_first_row_and_changes_the_others(
    replayed: Callable[..., Replayed], traces: list[ReplayRequest]
) -> None:
    clean, faulty = replayed(), replayed(fault="kv-slot")
    for request in traces:
        name = request.request_id
        assert torch.equal(clean.rows[name][0], faulty.rows[name][0])
        different = (clean.rows[name] != faulty.rows[name]).any(-1)
        assert different[1:].all(), f"{name}: rows {different.tolist()}"
