"""The model that a decode step computes: a Llama-shaped decoder with a tied output matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from accuracy_core.calibration.quantisation import quantise

Weights = dict[str, torch.Tensor]
#: keys of a seeded cache that carry most of the attention
_ATTENDED = 4


@dataclass(frozen=True)
class StepConfig:
    """Sizes of the model and of the step. `dtype`: of weights, cache and outputs; FP8 weights come with scales."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    batch: int = 1
    dtype: str = "bfloat16"
    fp8_weights: bool = False
    rope_theta: float = 500_000.0
    norm_eps: float = 1e-5

    @property
    def torch_dtype(self) -> torch.dtype:
        found = getattr(torch, self.dtype)
        assert isinstance(found, torch.dtype)
        return found


@dataclass
class KvCache:
    """`k`, `v`: (layers, batch, kv_heads, capacity, head_dim). `length`: tokens that are in it.

    A step writes the K and V of its token at position `length`; whoever calls it counts `length` up afterwards.
    """

    k: torch.Tensor
    v: torch.Tensor
    length: int = 0


def matrices(config: StepConfig) -> dict[str, tuple[int, int]]:
    """Name -> (rows, columns) of every matrix of the model."""
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    found = {"embedding": (config.vocab, config.hidden)}
    for layer in range(config.layers):
        found |= {
            f"{layer}.q": (q, config.hidden),
            f"{layer}.k": (kv, config.hidden),
            f"{layer}.v": (kv, config.hidden),
            f"{layer}.o": (config.hidden, q),
            f"{layer}.gate": (config.ffn, config.hidden),
            f"{layer}.up": (config.ffn, config.hidden),
            f"{layer}.down": (config.hidden, config.ffn),
        }
    return found


def make_weights(config: StepConfig, seed: int) -> Weights:
    """Seeded weights of standard deviation 1/sqrt(fan_in), embeddings of unit RMS, norms near 1.

    With `fp8_weights` every matrix but the embedding is e4m3 with one float32 scale a row under `NAME.scale`: shipped
    quantised, so that quantising is nobody's error.
    """
    generator = torch.Generator().manual_seed(seed)
    weights: Weights = {}
    for name, (rows, columns) in matrices(config).items():
        values = torch.randn(rows, columns, generator=generator)
        if name != "embedding":
            values /= math.sqrt(columns)
        if config.fp8_weights and name != "embedding":
            weights[name], weights[f"{name}.scale"] = quantise(values)
        else:
            weights[name] = values.to(config.torch_dtype)
    for layer in range(config.layers):
        for norm in ("attention_norm", "mlp_norm"):
            weights[f"{layer}.{norm}"] = (1 + 0.1 * torch.randn(config.hidden, generator=generator)).to(
                config.torch_dtype
            )
    weights["norm"] = (1 + 0.1 * torch.randn(config.hidden, generator=generator)).to(config.torch_dtype)
    return weights


def make_cache(config: StepConfig, seed: int, steps: int) -> KvCache:
    """A cache filled with seeded K and V for `context` tokens; the room for `steps` more is NaN until it is written.

    Keys are spread so that a query attends to few of them, however many there are: over thousands of unit keys a
    softmax is flat, its mean of random values all but 0, and a step that leaves the cache out would pass.
    """
    generator = torch.Generator().manual_seed(seed)
    # scores are normal with the keys' deviation s, and exp(-s^2) of all keys carry the weight
    spread = math.sqrt(max(1.0, math.log(config.context / _ATTENDED)))
    shape = (config.layers, config.batch, config.kv_heads, config.context + steps, config.head_dim)
    sides = []
    for deviation in (spread, 1.0):
        values = torch.full(shape, float("nan"))
        filled = (*shape[:3], config.context, config.head_dim)
        values[..., : config.context, :] = torch.randn(filled, generator=generator) * deviation
        sides.append(values.to(config.torch_dtype))
    return KvCache(sides[0], sides[1], config.context)


def make_tokens(config: StepConfig, seed: int, steps: int) -> torch.Tensor:
    """int64 (steps, batch)."""
    return torch.randint(config.vocab, (steps, config.batch), generator=torch.Generator().manual_seed(seed))


def bytes_per_step(config: StepConfig) -> int:
    """Bytes that a step cannot avoid reading: every weight once (the tied embedding as output matrix) and the cache."""
    size = 2 if config.dtype in ("bfloat16", "float16") else 4
    total = 0
    for name, (rows, columns) in matrices(config).items():
        narrow = config.fp8_weights and name != "embedding"
        total += rows * columns * (1 if narrow else size) + (4 * rows if narrow else 0)
    kv = 2 * config.layers * config.batch * config.kv_heads * config.context * config.head_dim
    return total + size * kv
