"""Logits of given tokens in one forward pass, and greedy tokens that those logits confirm."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import torch

from accuracy_core.errors import ReferenceError_
from accuracy_core.goldens.capture import Capture, Captured
from accuracy_core.goldens.draft_weights import DraftWeights

logger = logging.getLogger(__name__)

#: how far one forward pass and cached decoding may be apart in FP32, relative to the largest |logit| of the prompt.
#: Rounding alone gives about 1e-6 (7e-7 on the bundled model); more means that the two paths compute different things,
#: as with rotary embeddings whose scaling depends on the sequence's length.
ONE_FORWARD_TOLERANCE = 1e-4
#: prompts drafted at a time, and bytes that their logits may take
DRAFT_BATCH = 32
DRAFT_BYTES = 512 << 20


@dataclass(frozen=True)
class GreedyRows:
    """Greedy tokens of one prompt and the FP32 logits that predicted them, float32 (tokens, vocab).

    `corrections`: draft tokens that one forward pass put right, at near ties. `deviation`: largest difference between
    cached decoding and one forward pass, relative to the largest |logit|. `captured`: what was taken from the pass that
    gave the logits.
    """

    tokens: list[int]
    logits: torch.Tensor
    corrections: int
    deviation: float
    captured: Captured = field(default_factory=dict)


def forced_logits(model: Any, prompt: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
    """Logits (tokens, vocab) in the model's dtype: row i predicts `tokens[i]` from the prompt and the tokens before it.

    One forward over prompt + tokens. Causal attention makes row i independent of what follows.
    """
    return forced_pass(model, prompt, tokens)[0]


@torch.inference_mode()
def forced_pass(
    model: Any, prompt: Sequence[int], tokens: Sequence[int], capture: Capture | None = None
) -> tuple[torch.Tensor, Captured]:
    """As `forced_logits`, with what `capture` took from the same pass."""
    ids = torch.tensor([[*prompt, *tokens[:-1]]])
    # the logits of a long prompt itself would take gigabytes; nearly every causal model can leave them out
    wanted = {"logits_to_keep": len(tokens)} if "logits_to_keep" in signature(model.forward).parameters else {}
    if capture is None:
        return model(input_ids=ids, use_cache=False, **wanted).logits[0][-len(tokens) :].clone(), {}
    with capture.recording(model) as collect:
        output = model(input_ids=ids, use_cache=capture.use_cache, **wanted)
        captured = {name: list(tensors) for name, tensors in collect(output).items()}
    return output.logits[0][-len(tokens) :].clone(), captured


@torch.inference_mode()
def greedy_draft(model: Any, prompts: Sequence[Sequence[int]], length: int) -> list[tuple[list[int], torch.Tensor]]:
    """Cached, batched greedy decoding of exactly `length` tokens, past EOS: tokens and raw logits (length, vocab) each.

    Prompts are padded on the left. Penalties, samplers and stop rules of the checkpoint's generation config are off.
    """
    from transformers import GenerationConfig

    width = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    before = model.generation_config
    model.generation_config = GenerationConfig(do_sample=False, max_new_tokens=length, pad_token_id=0)
    try:
        output = model.generate(input_ids=ids, attention_mask=mask, output_logits=True, return_dict_in_generate=True)
    finally:
        model.generation_config = before
    logits = torch.stack(output.logits)  # (length, batch, vocab)
    return [(row[width:].tolist(), logits[:, index]) for index, row in enumerate(output.sequences)]


def greedy_rows(
    model: Any, prompts: Sequence[Sequence[int]], length: int, capture: Capture | None = None
) -> list[GreedyRows]:
    """Greedy continuation of every prompt, `length` tokens past EOS, with the logits of one forward pass per prompt.

    Drafted in batches, then confirmed: each stored row's argmax is the token that follows it. Logits come from a pass
    over one prompt alone, so they do not depend on what else was in the batch. A prompt whose draft deviates (padding
    that the model does not ignore) is drafted again alone, with the model's own weights. Raises ReferenceError_ if
    cached decoding of a single prompt and one forward pass differ by more than ONE_FORWARD_TOLERANCE.
    """
    rows: dict[int, GreedyRows] = {}
    row_bytes = 4 * length * model.config.get_text_config().vocab_size
    size = max(1, min(DRAFT_BATCH, DRAFT_BYTES // row_bytes))
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))  # little padding
    batches = [order[start : start + size] for start in range(0, len(order), size)]
    draft_weights = DraftWeights(model, steps=length * len(batches))
    for batch in batches:
        with draft_weights.used():
            drafts = greedy_draft(model, [prompts[index] for index in batch], length)
        for index, (tokens, logits) in zip(batch, drafts, strict=True):
            prompt = prompts[index]
            confirmed = _confirm(model, prompt, tokens, logits, capture)
            if confirmed.deviation > ONE_FORWARD_TOLERANCE and (len(batch) > 1 or len(draft_weights)):
                logger.info("batched draft deviates by %.1e: drafting this prompt alone", confirmed.deviation)
                confirmed = _confirm(model, prompt, *greedy_draft(model, [prompt], length)[0], capture)
            if not confirmed.deviation <= ONE_FORWARD_TOLERANCE:  # NaN deviates, too
                raise ReferenceError_(
                    f"token-by-token decoding and one forward pass differ by {confirmed.deviation:.1e} of the largest "
                    f"logit in FP32, allowed is {ONE_FORWARD_TOLERANCE:.0e}",
                    fix="this model's logits depend on the length of the sequence, or its KV cache is wrong; "
                    "check its config (rotary scaling, sliding window) or pass a model_loader",
                )
            rows[index] = confirmed
    return [rows[index] for index in range(len(prompts))]


def _confirm(
    model: Any, prompt: Sequence[int], draft: list[int], draft_logits: torch.Tensor, capture: Capture | None
) -> GreedyRows:
    """Replace draft tokens that the one-pass logits do not choose, from the left, until every row agrees."""
    tokens, corrections, deviation = list(draft), 0, 0.0
    for _ in range(len(draft) + 1):
        logits, captured = forced_pass(model, prompt, tokens, capture)
        check_finite(logits, "FP32")
        choices = logits.argmax(-1).tolist()
        wrong = next(
            (i for i, (token, choice) in enumerate(zip(tokens, choices, strict=True)) if token != choice), None
        )
        if corrections == 0:
            # rows up to the first differing token were computed from the same context on both paths
            same = len(tokens) if wrong is None else wrong + 1
            deviation = float((draft_logits[:same] - logits[:same]).abs().max() / logits[:same].abs().max())
        if wrong is None or not deviation <= ONE_FORWARD_TOLERANCE:
            break
        corrections += 1
        tokens = [*tokens[:wrong], choices[wrong]]
        if len(tokens) < len(draft):
            tokens += greedy_draft(model, [[*prompt, *tokens]], len(draft) - len(tokens))[0][0]
    return GreedyRows(tokens, logits, corrections, deviation, captured)


def check_finite(logits: torch.Tensor, side: str) -> None:
    """Raise ReferenceError_ if any value is NaN or infinite: nothing can be judged against it."""
    finite = torch.isfinite(logits)
    if not bool(finite.all()):
        row = int((~finite).any(-1).nonzero()[0])
        raise ReferenceError_(
            f"the {side} reference has NaN or infinite logits from generated token {row} on",
            fix="check the checkpoint and its config; nothing was cached",
        )
