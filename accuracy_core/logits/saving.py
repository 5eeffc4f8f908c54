"""The documented artefacts of a validation."""

from __future__ import annotations

from pathlib import Path

import torch

from accuracy_core.errors import ConfigurationError


def save_logit_tensors(output_dir: Path, reference: torch.Tensor, target: torch.Tensor) -> None:
    """Write `reference_logits.pt` (expected logits) and `target_logits.pt`, (tokens, batch, vocab), all tokens.

    Plain tensors: readable with `torch.load(path, weights_only=True)`. Raises ConfigurationError if the folder is not
    writable.
    """
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        for name, x in (("reference_logits.pt", reference), ("target_logits.pt", target)):
            torch.save(
                x.detach().cpu().contiguous().clone(), output_dir / name
            )  # clone: a view would save its whole base
    except OSError as error:
        raise ConfigurationError(f"cannot write logits to {output_dir}: {error}") from error
