"""Standalone pages of a logit comparison, under their documented names."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from accuracy_core.errors import ConfigurationError
from accuracy_core.logits.compare import compare_prompts
from accuracy_core.logits.panels import logit_panels, ratio_panels
from accuracy_core.logits.saving import save_logit_tensors
from accuracy_core.logits.settings import effective_tolerances
from accuracy_core.schemas import RowMetrics


def visualize_logit_results(
    results: Sequence[Sequence[Mapping[str, Any]]],
    output_dir: str = "logit_validation_plots",
    max_tokens: int = 5,
    save_logits: bool = True,
) -> None:
    """Write `logit_analysis_b{batch}.html` per batch row and `logit_analysis_summary.json` into `output_dir`.

    `results[batch][token]` are the dicts of `MultiPromptValidationResult.per_prompt_results`. The pages (self-
    contained, plotly.js inlined) draw the first `max_tokens` tokens; the summary covers all. `save_logits` also puts
    every token's metrics into the summary; logits themselves are saved by the validation, which has them. Raises
    ConfigurationError for results of another form, a `max_tokens` below 1 or a folder that is not writable.
    """
    if max_tokens < 1:
        raise ConfigurationError(f"max_tokens must be at least 1, got {max_tokens}")
    if not results or not all(results):
        raise ConfigurationError("there are no results to draw", fix="pass per_prompt_results[i][1] of a validation")
    try:
        batches = [[RowMetrics.model_validate(dict(row)) for row in batch] for batch in results]
    except (ValidationError, TypeError, ValueError) as error:
        raise ConfigurationError(f"results are not those of a logit validation: {error}") from error
    folder = Path(output_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for batch, rows in enumerate(batches):
            (folder / f"logit_analysis_b{batch}.html").write_text(_page(rows[:max_tokens], batch), encoding="utf-8")
        summary = {"batches": [_summary(b, rows, save_logits) for b, rows in enumerate(batches)]}
        text = json.dumps(_plain(summary), indent=2, allow_nan=False)
        (folder / "logit_analysis_summary.json").write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot write plots to {folder}: {error}") from error


def visualize_logits(
    target_logits: torch.Tensor,
    baseline_logits: torch.Tensor,
    output_dir: str = "logit_plots",
    tol_map: Mapping[Any, Any] | None = None,
) -> None:
    """Compare two logit tensors (tokens, batch, vocab) two-way and draw all tokens; also saves both tensors.

    Raises what `compare_prompts` and `visualize_logit_results` raise.
    """
    tolerances = effective_tolerances(None, tol_map, None)
    result = compare_prompts(None, [baseline_logits], [target_logits], tolerances=tolerances)
    visualize_logit_results(result.results(0), output_dir, max_tokens=baseline_logits.shape[0])
    save_logit_tensors(Path(output_dir), baseline_logits, target_logits)


def _page(rows: Sequence[RowMetrics], batch: int) -> str:
    """One HTML page: the four panels, and the three-way panels where there are ratios. plotly.js is in it once."""
    parts = [logit_panels(rows).to_html(full_html=False, include_plotlyjs=True)]
    if any(not math.isnan(r.l2_ratio) for r in rows):
        parts.append(ratio_panels(rows).to_html(full_html=False, include_plotlyjs=False))
    body = "\n".join(parts)
    title = f"Logit analysis, batch row {batch}"
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>\n'
        f"<body><h1>{title}</h1>\n{body}\n</body></html>\n"
    )


def _summary(batch: int, rows: Sequence[RowMetrics], all_tokens: bool) -> dict[str, Any]:
    keys = list(rows[0].topk_error)
    summary: dict[str, Any] = {
        "batch": batch,
        "tokens": len(rows),
        "two_way_passed": all(r.two_way_passed for r in rows),
        "max_error": {k: _largest([r.topk_error[k] for r in rows]) for k in keys},
        "diverged_tokens": [r.token for r in rows if r.diverged],
        "bad_tokens": [r.token for r in rows if r.bad],
        "max_linf_ratio": _largest([r.linf_ratio for r in rows]),
        "max_l2_ratio": _largest([r.l2_ratio for r in rows]),
        "mean_kl": sum(r.kl for r in rows) / len(rows),
    }
    return summary | ({"per_token": [r.model_dump() for r in rows]} if all_tokens else {})


def _largest(values: Sequence[float]) -> float:
    """NaN if any is NaN: `max` would hide it."""
    return math.nan if any(math.isnan(v) for v in values) else max(values)


def _plain(value: Any) -> Any:
    """Non-finite floats as the strings that the schemas use."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value
