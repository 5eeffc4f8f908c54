"""What a prompt plugin is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accuracy_core.engines.protocol import TargetEngine
from accuracy_core.prompts.prepared import PreparedPrompt
from accuracy_core.schemas import EngineSpec, RunDir, Tolerances

if TYPE_CHECKING:
    import torch

#: called with (plugin, prompts done, prompts in all)
PromptProgress = Callable[[str, int, int], None]

#: makes a loaded engine; it is used as a context manager
EngineFactory = Callable[[EngineSpec], TargetEngine]

#: (batch, prompt length) int64 ids -> logits float32 (tokens, batch, vocab) and ids int64 (tokens, batch)
GenerateFn = Callable[["torch.Tensor"], tuple["torch.Tensor", "torch.Tensor"]]

#: `fp32_logits`, `dtype_logits`: per prompt (tokens, 1, vocab); `input_ids`: per prompt; optional `key`
Goldens = Mapping[str, Any]


def no_progress(plugin: str, done: int, total: int) -> None:
    """Progress that nobody looks at."""


@dataclass(frozen=True)
class PluginContext:
    """Immutable. `engine`, `generate_fn` and `goldens` are None for a plugin that manages its own engine.

    Such a plugin opens one with `engine_factory` (None: by the engine registry) under `lease`: the device is the run's.
    `goldens_dir` is the root of the golden cache (None: the default) for references that a plugin computes itself.
    `prompts` are token ids; `prepared` the same prompts with their texts and origins, in the same order. Results of
    `prompts[i]` belong into `output_dir.prompt(prepared[i].index)`.
    """

    checkpoint: str
    prompts: tuple[tuple[int, ...], ...]
    prepared: tuple[PreparedPrompt, ...]
    server_config: EngineSpec
    output_length: int
    output_dir: RunDir
    dtype: str
    tokenizer: Any = None
    engine: TargetEngine | None = None
    generate_fn: GenerateFn | None = None
    goldens: Goldens | None = None
    tolerances: Tolerances | None = None
    goldens_dir: str | Path | None = None
    progress: PromptProgress = no_progress
    engine_factory: EngineFactory | None = None
    lease: Any = None
