"""The reference of a target whose KV cache is FP8 (e4m3).

As devices do it: attention of the prompt sees keys and values as they were computed; what it leaves in the cache, and
what every later token writes there, is rounded, and that is what every later token reads, its own entry included.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from accuracy_core.errors import NotMeasuredError

LARGEST = 448.0  # of e4m3
_SCALE = re.compile(r".*\blayers\.(\d+)\.(?:self_attn|attn|attention)(?:\.attn)?\.([kv])_scale")


def round_e4m3(values: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """`values` after a stay in the cache: divided by `scale`, saturated, rounded to e4m3, multiplied. Same dtype."""
    stored = (values.to(torch.float32) / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return (stored.to(torch.float32) * scale).to(values.dtype)


def kv_scales(checkpoint: str) -> dict[tuple[int, str], float]:
    """Scales in the checkpoint's safetensors, by layer and "k" or "v". What is not there is 1, as engines take it."""
    from safetensors import safe_open

    scales: dict[tuple[int, str], float] = {}
    for file in sorted(Path(checkpoint).glob("*.safetensors")):
        with safe_open(file, framework="pt") as content:
            for name in content.keys():  # noqa: SIM118 - not a dict
                if match := _SCALE.fullmatch(name):
                    scales[int(match[1]), match[2]] = float(content.get_tensor(name).to(torch.float32).reshape(()))
    return scales


@contextmanager
def fp8_kv_cache(model: Any, prompt_length: int, scales: dict[tuple[int, str], float]) -> Iterator[None]:
    """Inside, one forward pass over prompt and tokens gives the logits that decoding with an FP8 cache gives.

    Rows of the prompt attend to keys and values as they are, later rows to rounded ones. Raises NotMeasuredError when
    the model's attention does not go through transformers' SDPA function once a layer.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    original = ALL_ATTENTION_FUNCTIONS["sdpa"]
    layers: list[int] = []

    def attention(module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
        layer = int(module.layer_idx)
        layers.append(layer)
        plain, weights = original(module, query, key, value, mask, **kwargs)
        key = round_e4m3(key, scales.get((layer, "k"), 1.0))
        value = round_e4m3(value, scales.get((layer, "v"), 1.0))
        rounded, _ = original(module, query, key, value, mask, **kwargs)
        return torch.cat([plain[:, :prompt_length], rounded[:, prompt_length:]], 1), weights

    ALL_ATTENTION_FUNCTIONS["sdpa"] = attention
    try:
        yield
    finally:
        ALL_ATTENTION_FUNCTIONS["sdpa"] = original
    expected = int(model.config.get_text_config().num_hidden_layers)
    if layers != list(range(expected)):
        raise NotMeasuredError(
            f"the FP8 KV cache reached {len(layers)} of {expected} attention layers of this architecture",
            fix="compare with kv_cache_dtype='auto'",
        )
