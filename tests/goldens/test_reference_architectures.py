"""References of other architectures against plain decoding: one full forward per token, no cache, no batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from accuracy_core.errors import ConfigurationError
from accuracy_core.goldens import generate_three_way_reference_logits, load_reference_model
from accuracy_core.goldens.reference_config import attention_implementation, load_config

from .helpers import plain_greedy

SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip


def random_checkpoint(folder: Path, name: str, **extra: Any) -> str:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**SMALL, **extra})
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.ndim > 1 else 1)  # random weights are too small to prefer any token
    model.save_pretrained(folder / name)
    return str(folder / name)


ARCHITECTURES: dict[str, dict[str, Any]] = {
    "Mistral": {"sliding_window": 8},
    "Qwen3": {},
    "Gemma2": {"query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0, "sliding_window": 8},
    "Gemma3Text": {
        "query_pre_attn_scalar": 8,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_other_architectures_decode_greedily(name: str, tmp_path: Path) -> None:
    checkpoint = random_checkpoint(tmp_path, name, **ARCHITECTURES[name])
    prompts = [[1, 2, 3, 4, 5], [6, 7], list(range(8, 28))]
    result = generate_three_way_reference_logits(checkpoint, "bfloat16", 16, prompts)
    attention = attention_implementation(load_config(checkpoint))
    model = load_reference_model(checkpoint, torch.float32, attn_implementation=attention).eval()
    for index, prompt in enumerate(prompts):
        tokens, rows = plain_greedy(model, prompt, 16)
        assert result["token_ids"][index] == tokens
        assert (result["fp32_logits"][index][:, 0] - rows).abs().max() <= 1e-5 * rows.abs().max()


def test_soft_capped_attention_is_never_computed_with_sdpa(tmp_path: Path) -> None:
    """transformers' SDPA drops the cap silently: were it used, the reference would be the wrong one."""
    checkpoint = random_checkpoint(tmp_path, "Gemma2", **ARCHITECTURES["Gemma2"])
    prompt = list(range(1, 13))
    result = generate_three_way_reference_logits(checkpoint, "bfloat16", 4, [prompt])["fp32_logits"][0][:, 0]
    capped, dropped = (
        plain_greedy(load_reference_model(checkpoint, torch.float32, attn_implementation=name).eval(), prompt, 1)[1][0]
        for name in ("eager", "sdpa")
    )
    assert (result[0] - capped).abs().max() <= 1e-5 * capped.abs().max()
    assert (dropped - capped).abs().max() > 1e-3 * capped.abs().max()
    with pytest.raises(ConfigurationError, match="soft cap"):
        generate_three_way_reference_logits(checkpoint, "bfloat16", 4, [prompt], attn_implementation="sdpa")
