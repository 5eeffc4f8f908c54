"""Files of logit validation for one prompt."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from accuracy_core.prompts.text_report import validation_log
from accuracy_core.schemas import PromptResult, RunDir, Tolerances, write_text

if TYPE_CHECKING:
    import torch

#: where the pages find plotly.js: one copy for all prompts, since each would be 5 MB otherwise
PLOTLY = "plotly.min.js"


def save_artifacts(
    run_dir: RunDir,
    result: PromptResult,
    logits: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None,
    tolerances: Tolerances,
) -> None:
    """`prompt_result.json`, `validation_log.txt`, the logit page, and the rows of all sides under the documented names.

    `logits` are FP32, expected and target rows, (tokens, 1, vocab) each, or None when the prompt was not compared.
    """
    folder = run_dir.prompt(result.index)
    run_dir.write(run_dir.prompt_result(result.index, result.plugin), result)
    write_text(folder / "validation_log.txt", validation_log(result))
    if result.rows:
        _save_pages(run_dir, result, tolerances)
    if logits is not None:
        for name, tensor in zip(("baseline_logits", "reference_logits", "target_logits"), logits, strict=True):
            if tensor is not None:
                _save_tensor(run_dir, result.index, name, tensor)


def _save_tensor(run_dir: RunDir, index: int, name: str, tensor: torch.Tensor) -> None:
    import torch

    buffer = io.BytesIO()
    torch.save(tensor.detach().cpu().contiguous().clone(), buffer)  # clone: a view would save its whole base
    path = run_dir.prompt(index) / "logit_validation" / f"{name}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(buffer.getvalue())


def _save_pages(run_dir: RunDir, result: PromptResult, tolerances: Tolerances) -> None:
    """`logit_validation/logit_analysis_b{batch}.html`: the panels of one batch row, all tokens."""
    from accuracy_core.logits.panels import logit_panels, ratio_panels

    shared = run_dir.prompt_analysis / PLOTLY
    if not shared.exists():
        from plotly.offline import get_plotlyjs

        write_text(shared, get_plotlyjs())
    for batch in sorted({row.batch for row in result.rows}):
        rows = [row for row in result.rows if row.batch == batch]
        figures = (logit_panels(rows, result.tokens), ratio_panels(rows, result.tokens, tolerances=tolerances))
        body = "\n".join(figure.to_html(full_html=False, include_plotlyjs=False) for figure in figures)
        title = f"Logit analysis, prompt {result.index}, batch row {batch}"
        page = (
            f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            f'<script src="../../{PLOTLY}"></script></head>\n<body><h1>{title}</h1>\n{body}\n</body></html>\n'
        )
        write_text(run_dir.prompt(result.index) / "logit_validation" / f"logit_analysis_b{batch}.html", page)
