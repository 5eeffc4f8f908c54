"""What the golden pass captured, read back one prompt at a time, and the tokens that it was forced along."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accuracy_core.errors import AssayError, ReferenceError_
from accuracy_core.prompts.context import PluginContext

if TYPE_CHECKING:
    import torch

#: name of a captured tensor -> the tensors under it
Load = Callable[[str], "list[torch.Tensor]"]


def open_capture(cache_dir: Path, key: str, kept: Mapping[str, Any] | None, what: str) -> tuple[list[str], Load]:
    """(names, function that loads one) of a golden: `kept` in memory, or the entry of `key` in the cache.

    Raises ReferenceError_, saying `what` is gone, when the cache no longer holds it.
    """
    from accuracy_core.goldens.disk import DiskTier

    if kept is not None:
        return list(kept), kept.__getitem__
    entry = DiskTier(cache_dir).read(key, lambda _: None)
    if entry is None:
        raise ReferenceError_(
            f"the reference's {what} no longer in the golden cache",
            fix="raise $ASSAY_GOLDENS_MAX_BYTES or free disk space, and run again",
        )
    return list(entry.file.names()), entry.file.load


def forced_tokens(ctx: PluginContext, position: int) -> list[int]:
    """Greedy tokens of the FP32 golden. Raises ReferenceError_ when there are none."""
    import torch

    if ctx.goldens is None:
        raise ReferenceError_("there are no goldens to take the forced tokens from")
    rows = ctx.goldens["fp32_logits"][position][: ctx.output_length]
    if rows.ndim != 3 or rows.shape[0] < 1 or rows.shape[1] != 1 or bool(torch.isnan(rows).any()):
        raise ReferenceError_(f"golden fp32_logits of shape {tuple(rows.shape)} is no usable (tokens, 1, vocab)")
    tokens: list[int] = rows[:, 0].argmax(-1).tolist()
    return tokens


def all_forced_tokens(ctx: PluginContext, errors: dict[int, str]) -> dict[int, list[int]]:
    """Position -> greedy tokens; a prompt whose golden is unusable goes to `errors` instead."""
    tokens: dict[int, list[int]] = {}
    for position in range(len(ctx.prompts)):
        try:
            tokens[position] = forced_tokens(ctx, position)
        except (AssayError, KeyError, IndexError) as error:
            errors[position] = error.message if isinstance(error, AssayError) else repr(error)
    return tokens
