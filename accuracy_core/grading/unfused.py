"""The unfused reference: a decode step as a row of torch operators. It is right, and scores 0 by design."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

from accuracy_core.grading.shape import KvCache, StepConfig, Weights

Step = Callable[[torch.Tensor, KvCache], torch.Tensor]


def build(config: StepConfig, weights: Weights) -> Step:
    """`step(token_ids (batch,), cache) -> logits (batch, vocab)` in the task's dtype, float32 inside norms, softmax and
    rotary embedding, everything else and the residual stream in the task's dtype."""
    return build_in(config, weights, config.torch_dtype)


def build_in(
    config: StepConfig,
    weights: Weights,
    dtype: torch.dtype,
    residual: torch.dtype | None = None,
    *,
    fused_attention: bool = False,
) -> Step:
    """As `build`, computing in `dtype`, with the residual stream in `residual` (default: `dtype`), and torch's fused
    attention or separate products.

    In float32 it is the reference that errors are measured against, on the same bytes of the weights.
    """
    wide = {name: tensor for name, tensor in weights.items() if not name.endswith(".scale")}
    for name, tensor in wide.items():
        scale = weights.get(f"{name}.scale")
        wide[name] = tensor.to(dtype) if scale is None else (tensor.float() * scale).to(dtype)
    stream = residual or dtype

    def step(token_ids: torch.Tensor, cache: KvCache) -> torch.Tensor:
        position = cache.length
        cos, sin = rotary(config, position)
        x = wide["embedding"][token_ids].to(stream)
        for layer in range(config.layers):
            h = rms_norm(x, wide[f"{layer}.attention_norm"], config.norm_eps).to(dtype)
            x = x + attention(config, wide, layer, h, cache, cos, sin, position, fused_attention).to(stream)
            h = rms_norm(x, wide[f"{layer}.mlp_norm"], config.norm_eps).to(dtype)
            gate, up = F.linear(h, wide[f"{layer}.gate"]), F.linear(h, wide[f"{layer}.up"])
            x = x + F.linear(F.silu(gate) * up, wide[f"{layer}.down"]).to(stream)
        h = rms_norm(x, wide["norm"], config.norm_eps).to(dtype)
        return F.linear(h / math.sqrt(config.hidden), wide["embedding"])

    return step


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """float32 (batch, hidden)."""
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()


def rotary(config: StepConfig, position: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin (head_dim / 2,) float32 of one position."""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    angle = position * config.rope_theta**-half
    return angle.cos(), angle.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate halves of the last dimension; in x's dtype, float32 inside."""
    low, high = x.float().chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1).to(x.dtype)


def attention(
    config: StepConfig,
    w: Weights,
    layer: int,
    h: torch.Tensor,
    cache: KvCache,
    cos: torch.Tensor,
    sin: torch.Tensor,
    position: int,
    fused: bool = False,
) -> torch.Tensor:
    """(batch, hidden). Writes K and V of the token into the cache first."""
    batch, size = h.shape[0], config.head_dim
    q = rotate(F.linear(h, w[f"{layer}.q"]).view(batch, config.heads, size), cos, sin)
    k = rotate(F.linear(h, w[f"{layer}.k"]).view(batch, config.kv_heads, size), cos, sin)
    v = F.linear(h, w[f"{layer}.v"]).view(batch, config.kv_heads, size)
    cache.k[layer, :, :, position], cache.v[layer, :, :, position] = k.to(cache.k.dtype), v.to(cache.v.dtype)
    keys = cache.k[layer, :, :, : position + 1].to(h.dtype)
    values = cache.v[layer, :, :, : position + 1].to(h.dtype)
    group = config.heads // config.kv_heads
    grouped = q.view(batch, config.kv_heads, group, size)
    if fused:
        mixed = F.scaled_dot_product_attention(grouped, keys, values)
        return F.linear(mixed.reshape(batch, -1), w[f"{layer}.o"])
    scores = (grouped @ keys.transpose(-1, -2)).float() / math.sqrt(size)
    mixed = torch.softmax(scores, -1).to(h.dtype) @ values
    return F.linear(mixed.reshape(batch, -1), w[f"{layer}.o"])
