"""Three modules as a kernel team would test its own."""

import torch
import torch.nn.functional as F


def my_rms_norm(case):
    """x / sqrt(mean(x^2) + eps) * weight, in float32 inside."""
    x = case.rows.float()
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + case.config.rms_norm_eps)
    return (x * case.weights["weight"].float()).to(case.rows.dtype)


def my_mlp(case):
    """down(silu(gate(x)) * up(x)) with gate and up in one product."""
    w = case.weights
    gate_up = F.linear(case.rows, torch.cat([w["gate_proj.weight"], w["up_proj.weight"]]))
    gate, up = gate_up.chunk(2, -1)
    return F.linear(F.silu(gate) * up, w["down_proj.weight"])


def my_rope(case):
    """Rotates halves of every query and key head by position / theta^(2i/d)."""
    heads, kv_heads = case.config.num_attention_heads, case.config.num_key_value_heads
    size = case.rows.shape[1] // (heads + kv_heads)
    theta = case.config.rope_parameters["rope_theta"]
    angle = case.positions[:, None] * theta ** (-torch.arange(0, size, 2) / size)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    both = case.rows.float().view(len(case.positions), heads + kv_heads, size)
    low, high = both.chunk(2, -1)
    rotated = torch.cat([low * cos - high * sin, high * cos + low * sin], -1).to(case.rows.dtype)
    return [rotated[:, :heads].flatten(1), rotated[:, heads:].flatten(1)]


def test_rms_norm(assay_module):
    assay_module.check("rms_norm", my_rms_norm)


def test_mlp(assay_module):
    assay_module.check("mlp", my_mlp, layer=1)


def test_rope(assay_module):
    assay_module.check("rope", my_rope)
