"""Made-up caches: FP32 values, the same with two independent draws of bf16-sized noise."""

from __future__ import annotations

from collections.abc import Callable

import torch

from accuracy_core.capture.kv import KvSides, LayerKv

HEADS, POSITIONS, WIDTH, PROMPT = 4, 48, 32, 30
NOISE = 2.0**-8

#: changes one side in place: (layer, which, target (heads, positions, width), fp32)
Fault = Callable[[int, str, torch.Tensor, torch.Tensor], None]


def side(seed: int, *, noise: float = NOISE) -> KvSides:
    """Independent standard normal values; reference and target err by `noise` relative, independently."""
    g = torch.Generator().manual_seed(seed)
    f = torch.randn(HEADS, POSITIONS, WIDTH, generator=g)
    b, t = (f * (1 + noise * torch.randn(f.shape, generator=g)) for _ in range(2))
    return KvSides(f, b, t)


def layers(count: int = 3, fault: Fault | None = None, *, seed: int = 0, given: bool = False) -> list[LayerKv]:
    """`count` layers. `fault` is applied to the target; with `given`, what attention was given is the faultless one."""
    made = []
    for layer in range(count):
        sides = {}
        for place, which in enumerate(("key", "value")):
            clean = side(1000 * seed + 10 * layer + place)
            target = clean.target.clone()
            if fault is not None:
                fault(layer, which, target, clean.fp32)
            sides[which] = KvSides(clean.fp32, clean.expected, target, clean.target if given else None)
        made.append(LayerKv(layer, sides["key"], sides["value"]))
    return made
