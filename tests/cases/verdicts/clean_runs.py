"""Synthetic runs in which the target is as good as BF16, and the same with one thing wrong.

Vocabularies of 260 to 152k ids, 1 to 64 tokens, 1 to 8 prompts; noise that is Gaussian, Laplace, Student-t or a mixture,
whose size may differ from row to row (the same for BF16 and target: it belongs to the input), with and without rounding
of the logits to bf16, with a constant offset. Everything follows from the seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

VOCABULARIES = (260, 500, 2_000, 8_192, 32_000, 50_257, 128_256, 151_936)
NOISES = ("gauss", "laplace", "student", "mixture")


@dataclass(frozen=True)
class Run:
    """Tensors per prompt, (tokens, 1, vocab)."""

    label: str
    baseline: list[torch.Tensor]
    expected: list[torch.Tensor]
    target: list[torch.Tensor]


def clean_run(seed: int, elements: int = 1_500_000) -> Run:
    """A run of at most about `elements` logits per side (one prompt of one token may be more)."""
    g = torch.Generator().manual_seed(seed)

    def pick(options: tuple) -> object:
        return options[int(torch.randint(len(options), (1,), generator=g))]

    vocab = int(pick(VOCABULARIES))
    tokens = int(torch.randint(1, 65, (1,), generator=g))
    prompts = int(torch.randint(1, 9, (1,), generator=g))
    tokens = max(1, min(tokens, elements // vocab))
    prompts = max(1, min(prompts, elements // (vocab * tokens)))
    noise, rounded = str(pick(NOISES)), bool(pick((True, False)))
    std = float(pick((0.005, 0.02, 0.06)))
    spread = float(pick((0.0, 0.3)))
    offset = float(pick((0.0, 0.5, -3.0)))
    f = _logits(prompts * tokens, vocab, g)
    scale = std * torch.exp(spread * torch.randn(len(f), 1, generator=g))
    b = f + scale * _noise(f.shape, noise, g)
    t = f + scale * _noise(f.shape, noise, g)
    if rounded:
        b, t = b.bfloat16().float(), t.bfloat16().float()
    t = t + offset

    def split(x: torch.Tensor) -> list[torch.Tensor]:
        return list(x.view(prompts, tokens, 1, vocab).unbind(0))

    label = f"seed {seed}: {prompts}x{tokens}x{vocab} {noise} {std} spread {spread} rounded {rounded} offset {offset}"
    return Run(label, split(f), split(b), split(t))


def winner_lowered(run: Run, seed: int) -> Run:
    """The same with one row's winner lowered beyond noise: by a bf16 step and five times the largest error that the BF16
    reference makes at any of the 50 likeliest tokens of any row."""
    g = torch.Generator().manual_seed(seed + 1_000_003)
    prompt = int(torch.randint(len(run.target), (1,), generator=g))
    token = int(torch.randint(run.target[0].shape[0], (1,), generator=g))
    largest = 0.0
    for f, b in zip(run.baseline, run.expected, strict=True):
        ids = f.topk(min(50, f.shape[-1]), -1).indices
        largest = max(largest, float((b - f).gather(-1, ids).abs().max()))
    top = int(run.baseline[prompt][token, 0].argmax())
    size = abs(float(run.baseline[prompt][token, 0, top]))
    step = 2.0 ** (math.floor(math.log2(size)) - 7)
    target = [x.clone() for x in run.target]
    target[prompt][token, 0, top] -= step + 5 * largest
    return Run(f"{run.label}, winner of prompt {prompt} token {token} lowered", run.baseline, run.expected, target)


def _logits(rows: int, vocab: int, g: torch.Generator) -> torch.Tensor:
    """A broad bulk around -4, some candidates, one winner that leads by little or much."""
    x = torch.randn(rows, vocab, generator=g) * 2.0 - 4.0
    k = min(40, vocab // 4)
    ids = torch.rand(rows, vocab, generator=g).topk(k, -1).indices
    values = torch.linspace(14.0, 4.0, k) + torch.randn(rows, k, generator=g) * 0.3
    values[:, 0] += torch.rand(rows, generator=g) * 4
    return x.scatter_(-1, ids, values)


def _noise(shape: torch.Size, kind: str, g: torch.Generator) -> torch.Tensor:
    """Unit standard deviation."""
    normal = torch.randn(shape, generator=g)
    if kind == "gauss":
        return normal
    if kind == "laplace":
        u = torch.rand(shape, generator=g) - 0.5
        return -u.sign() * torch.log1p(-2 * u.abs().clamp(max=0.4999999)) / math.sqrt(2)
    if kind == "student":  # 6 degrees of freedom: a normal over the root of a mean of 6 squared normals
        chi = torch.zeros(shape)
        for _ in range(6):
            chi += torch.randn(shape, generator=g).square_()
        return normal / (chi / 6).sqrt() / math.sqrt(6 / 4)
    rare = torch.rand(shape, generator=g) < 0.01  # one error in a hundred is four times as large
    return normal * torch.where(rare, 4.0, 1.0) / math.sqrt(1 + 0.01 * 15)
