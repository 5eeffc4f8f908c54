"""What is measured on: one checkpoint in FP32 and in the target's dtype, and seeded inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from accuracy_core.calibration.random_model import decoder_layers, seeded_model
from accuracy_core.errors import ConfigurationError
from accuracy_core.goldens.reference_config import load_config
from accuracy_core.goldens.reference_model import check_loaded, load_reference_model

#: prompt ids (tokens,) of one seed
Ids = list[int]


@dataclass(frozen=True)
class Inputs:
    """Seeded prompts: `tokens` ids each, of which the last `rows` positions' logits are compared.

    A trained model is measured on some of `prompts`, texts that it was made for: on random ids it is far from anything
    that it learnt, and single seeds are off by ten times the noise of the others. A random model has no such texts; its
    ids are random.

    Raises ConfigurationError when rows, tokens and prompts do not fit together.
    """

    seeds: int
    tokens: int = 24
    rows: int = 12
    prompts: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.rows <= self.tokens:
            raise ConfigurationError(f"{self.rows} rows cannot be taken of {self.tokens} tokens")
        if any(len(prompt) != self.tokens for prompt in self.prompts):
            raise ConfigurationError(f"every prompt must have {self.tokens} tokens, for they are also run as one batch")
        if self.prompts and len(self.prompts) < self.seeds:
            raise ConfigurationError(
                f"the texts give {len(self.prompts)} prompts of {self.tokens} tokens, {self.seeds} seeds are wanted",
                fix="give more texts, or fewer seeds",
            )

    def ids(self, vocab_size: int) -> list[Ids]:
        """One prompt per seed, each another one."""
        if not self.prompts:
            drawn = [torch.Generator().manual_seed(seed) for seed in range(self.seeds)]
            return [torch.randint(vocab_size, (self.tokens,), generator=draw).tolist() for draw in drawn]
        chosen = torch.randperm(len(self.prompts), generator=torch.Generator().manual_seed(0))[: self.seeds]
        return [list(self.prompts[number]) for number in chosen.tolist()]


@dataclass(frozen=True)
class Source:
    """A checkpoint's folder, or a configuration from which a seeded random model is built.

    `build(dtype)` gives an independent copy each time.
    """

    checkpoint: Path | None = None
    config: Any = None
    seed: int = 0

    def build(self, dtype: torch.dtype) -> Any:
        """A causal model on the CPU in evaluation mode, with SDPA attention where the architecture has it."""
        if self.checkpoint is not None:
            return check_loaded(load_reference_model(str(self.checkpoint), dtype), dtype)
        model = seeded_model(self.config, self.seed)
        return model if dtype is torch.float32 else model.to(dtype)

    @property
    def settings(self) -> Any:
        """The text model's configuration."""
        config = self.config if self.checkpoint is None else load_config(str(self.checkpoint), None, None)
        return config.get_text_config()


@torch.inference_mode()
def forward_rows(model: Any, ids: Sequence[Ids], rows: int) -> list[torch.Tensor]:
    """Logits of the last `rows` positions of each prompt alone, float32 (rows, vocab)."""
    found = []
    for prompt in ids:
        logits = model(input_ids=torch.tensor([prompt]), use_cache=False).logits[0, -rows:]
        found.append(logits.float())
    return found


@contextmanager
def truncated(model: Any, depth: int) -> Iterator[Any]:
    """The model with its first `depth` layers only; whole again on leaving."""
    layers = decoder_layers(model)
    owner = next(m for m in model.modules() if layers in m.children())
    name = next(name for name, child in owner.named_children() if child is layers)
    count = model.config.get_text_config().num_hidden_layers
    try:
        setattr(owner, name, nn.ModuleList(list(layers)[:depth]))
        model.config.get_text_config().num_hidden_layers = depth
        yield model
    finally:
        setattr(owner, name, layers)
        model.config.get_text_config().num_hidden_layers = count


def depths(layers: int) -> list[int]:
    """Depths to measure at: a quarter, half and all of the layers, without repeats."""
    return sorted({max(1, layers // 4), max(1, layers // 2), layers})


Rows = list[torch.Tensor]
Run = Callable[[Any], Rows]
