"""Reading results: a directory, a file or a dict, of any lm-eval from 0.3 on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accuracy_core.errors import ConfigurationError
from accuracy_core.evals.readers.assemble import compare_scores_and_samples, tables_from_files
from accuracy_core.evals.readers.directions import lower_by_name
from accuracy_core.evals.readers.generations import reader_for
from accuracy_core.evals.readers.locate import RunFiles, locate
from accuracy_core.evals.readers.normal_form import EvalResults
from accuracy_core.evals.readers.sample_table import SampleTable
from accuracy_core.evals.readers.scores import ScoreSheet, load_results
from accuracy_core.evals.request_index import RequestIndex
from accuracy_core.schemas import ScoreRow


def read_results(source: str | os.PathLike[str] | Mapping[str, Any]) -> EvalResults:
    """`source`: lm-eval's output directory, a results file, a samples file, or the dict of `simple_evaluate()`.

    Oddities are in `warnings`. Raises ConfigurationError when there are no results at all, or those of two models.
    """
    if isinstance(source, Mapping):
        if not isinstance(source.get("results"), Mapping):
            raise ConfigurationError(
                "the results dict has no mapping 'results'", fix="pass what simple_evaluate() returned"
            )
        raw = dict(source)
        results = reader_for(raw, None).read(raw, None)
    else:
        results = _read_files(locate(Path(source).expanduser()))
    results.warnings = results.sheet.warnings + results.warnings
    compare_scores_and_samples(results)
    results.warnings = list(dict.fromkeys(results.warnings))
    return results


def _read_files(files: RunFiles) -> EvalResults:
    raw: dict[str, Any] | None = None
    broken: list[str] = []
    if files.results is not None:
        try:
            raw = load_results(files.results)
        except ConfigurationError as error:
            if not files.samples:
                raise
            broken.append(f"{error.message}; scores recomputed from the samples")
    found = _from_samples(files, say_missing=not broken) if raw is None else reader_for(raw, files).read(raw, files)
    found.files = [path for path in [files.results, *files.samples] if path is not None]
    found.requests = RequestIndex(files.requests) if files.requests else None
    found.warnings = files.warnings + broken + found.warnings
    return found


def _from_samples(files: RunFiles, *, say_missing: bool) -> EvalResults:
    """Scores as means over the samples, when there is no results file to read."""
    tables = tables_from_files({}, files.samples, [])
    sheet = ScoreSheet(rows=[row for table in tables.values() for row in _mean_rows(table)])
    if say_missing:
        sheet.warnings.append("no results file: scores recomputed from the samples")
    return EvalResults(sheet, tables, {}, "samples only")


def _mean_rows(table: SampleTable) -> list[ScoreRow]:
    rows = []
    for name in table.n_records():
        for metric in table.metrics:
            _, values, judged = table.values(metric, name)
            if not judged.any():
                continue
            kept = values[judged]
            rows.append(
                ScoreRow(
                    key=f"{table.task}/{metric},{name}",
                    task=table.task,
                    metric=metric,
                    filter=name,
                    value=float(kept.mean()),
                    n=len(kept),
                    higher_is_better=not lower_by_name(metric),
                )
            )
    return rows
