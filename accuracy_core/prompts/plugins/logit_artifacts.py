"""Files of logit validation for one prompt."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from accuracy_core.prompts.text_report import validation_log
from accuracy_core.schemas import PromptResult, RunDir, write_text

if TYPE_CHECKING:
    import torch


def save_artifacts(
    run_dir: RunDir, result: PromptResult, logits: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None
) -> None:
    """`prompt_result.json`, `validation_log.txt`, and the rows of both sides under the documented names.

    `logits` are FP32, expected and target rows, (tokens, 1, vocab) each, or None when the prompt was not compared.
    """
    import torch

    folder = run_dir.prompt(result.index)
    run_dir.write(run_dir.prompt_result(result.index, result.plugin), result)
    write_text(folder / "validation_log.txt", validation_log(result))
    if logits is None:
        return
    for name, tensor in zip(("baseline_logits", "reference_logits", "target_logits"), logits, strict=True):
        if tensor is not None:
            buffer = io.BytesIO()
            torch.save(tensor.contiguous().clone(), buffer)
            path = folder / "logit_validation" / f"{name}.pt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(buffer.getvalue())
