"""Calibration on a trained model: equally right BF16 runs pass, small faults are found and put into the right phase."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from accuracy_core.logits import MultiPromptValidationResult, compare_prompts
from accuracy_core.models.resolve import embedded_model
from accuracy_core.outcome import Verdict
from accuracy_core.schemas import Phase

pytestmark = pytest.mark.slow
TOKENS, PROMPTS, AT_A_TIME = 16, 12, 3

Rows = list[torch.Tensor]


def load(dtype: torch.dtype, attention: str) -> Any:
    transformers = pytest.importorskip("transformers")
    folder = embedded_model()
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=attention).eval()


@torch.no_grad()
def decode(model: Any, prompt: list[int], path: list[int] | None, spoil: Callable[[Any], None] | None = None) -> Any:
    """Rows (tokens, 1, vocab) along `path` (None: greedy), step by step; `spoil` gets the cache after prefill."""
    out = model(input_ids=torch.tensor([prompt]), use_cache=True)
    rows = [out.logits[0, -1].float()]
    if spoil:
        spoil(out.past_key_values)
    for i in range(TOKENS - 1):
        token = int(rows[-1].argmax()) if path is None else path[i]
        out = model(input_ids=torch.tensor([[token]]), past_key_values=out.past_key_values, use_cache=True)
        rows.append(out.logits[0, -1].float())
    return torch.stack(rows).unsqueeze(1)


@pytest.fixture(scope="module")
def reference() -> tuple[list[list[int]], Rows, Rows]:
    """Prompts, FP32 rows, BF16 rows (fused attention)."""
    transformers = pytest.importorskip("transformers")
    folder = embedded_model()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    lines = (folder / "test.jsonl").read_text().splitlines()[:PROMPTS]
    prompts = [tokenizer(f"Q: {json.loads(line)['question']}\nA:").input_ids for line in lines]
    fp32 = load(torch.float32, "sdpa")
    f = [decode(fp32, p, None) for p in prompts]
    return prompts, f, replay(load(torch.bfloat16, "sdpa"), prompts, f)


def replay(model: Any, prompts: list[list[int]], f: Rows, spoil: Callable[[Any], None] | None = None) -> Rows:
    return [decode(model, p, x.argmax(-1).flatten().tolist(), spoil) for p, x in zip(prompts, f, strict=True)]


def results(reference: tuple[list[list[int]], Rows, Rows], t: Rows) -> list[MultiPromptValidationResult]:
    _, f, e = reference
    parts = [slice(i, i + AT_A_TIME) for i in range(0, PROMPTS, AT_A_TIME)]
    return [compare_prompts(f[part], e[part], t[part]) for part in parts]


def test_other_attention_kernel_passes(reference: tuple[list[list[int]], Rows, Rows]) -> None:
    prompts, f, e = reference
    t = replay(load(torch.bfloat16, "eager"), prompts, f)
    assert any(not torch.equal(a, b) for a, b in zip(e, t, strict=True)), "an equal run would prove nothing"
    for result in results(reference, t):
        assert result.verdict is Verdict.PASS, result.guards
        assert result.phase is Phase.NONE


@pytest.mark.parametrize("layer", [1, 2, 3])
def test_scaled_mlp_is_in_both_phases(reference: tuple[list[list[int]], Rows, Rows], layer: int) -> None:
    prompts, f, _ = reference
    model = load(torch.bfloat16, "sdpa")
    model.model.layers[layer].mlp.down_proj.register_forward_hook(lambda module, args, out: out * 1.05)
    for result in results(reference, replay(model, prompts, f)):
        assert result.verdict is not Verdict.PASS
        assert (result.phase, result.first_bad_token) == (Phase.BOTH, 0)


@pytest.mark.parametrize("layer", [0, 1, 3])
def test_shifted_cache_is_in_decode_only(reference: tuple[list[list[int]], Rows, Rows], layer: int) -> None:
    prompts, f, _ = reference

    def shift(cache: Any) -> None:
        held = cache.layers[layer]
        for name in ("keys", "values"):
            x = getattr(held, name)
            setattr(held, name, torch.cat([torch.zeros_like(x[:, :, :1]), x[:, :, :-1]], 2))

    for result in results(reference, replay(load(torch.bfloat16, "sdpa"), prompts, f, shift)):
        assert result.verdict is Verdict.FAIL
        assert result.phase is Phase.DECODE
        assert result.first_bad_token > 0
        assert not any(r.guards for r in result.rows if r.token == 0)
