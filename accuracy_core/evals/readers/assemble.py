"""What the readers share: samples of a run, and what is odd between scores and samples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accuracy_core.evals.readers.directions import metric_list
from accuracy_core.evals.readers.locate import task_of
from accuracy_core.evals.readers.normal_form import EvalResults
from accuracy_core.evals.readers.sample_table import (
    SampleTable,
    empty_and_cut,
    read_sample_dicts,
    read_sample_files,
)

_LOG_LIKELIHOOD_AGGREGATIONS = ("perplexity", "weighted_perplexity", "bits_per_byte")


def filter_order(raw: Mapping[str, Any], task: str) -> list[str]:
    """Names in the task's `filter_list`, in order; ["none"] when it has none."""
    configs = raw.get("configs")
    config = configs.get(task) if isinstance(configs, Mapping) else None
    listed = config.get("filter_list") if isinstance(config, Mapping) else None
    names = [str(item["name"]) for item in listed or [] if isinstance(item, Mapping) and "name" in item]
    return names or ["none"]


def tables_from_files(raw: Mapping[str, Any], paths: list[Path], tasks: list[str]) -> dict[str, SampleTable]:
    """One table per task; several files of one task are read as one."""
    by_task: dict[str, list[Path]] = {}
    for path in paths:
        by_task.setdefault(task_of(path, tasks), []).append(path)
    return {task: read_sample_files(task, files, filter_order(raw, task)) for task, files in by_task.items()}


def tables_from_dict(raw: Mapping[str, Any]) -> dict[str, SampleTable]:
    """Tables of `samples` in a results dict."""
    samples = raw.get("samples")
    if not isinstance(samples, Mapping):
        return {}
    return {
        str(task): read_sample_dicts(str(task), items, filter_order(raw, str(task)))
        for task, items in samples.items()
        if isinstance(items, list | tuple)
    }


def compare_scores_and_samples(results: EvalResults) -> None:
    """Add warnings: tasks without samples, metrics without per-sample values, values that judge no sample."""
    sheet = results.sheet
    for table in results.samples.values():
        _take_finish_reasons(results, table)
        results.warnings += table.warnings + empty_and_cut(table.task, table.frame)
        if table.unknown_fields:
            results.warnings.append(f"unknown fields in the samples of {table.task}: {', '.join(table.unknown_fields)}")
    tasks = list(dict.fromkeys(row.task for row in sheet.rows if not row.is_group))
    if not results.samples:
        results.warnings.append("no samples: there are scores only, and no prompt can be extracted")
    else:
        missing = [task for task in tasks if task not in results.samples]
        results.warnings += [f"no samples for task {task}" for task in missing]
    for task in tasks:
        if task in results.samples:
            _compare_task(results, task, results.samples[task])


def _take_finish_reasons(results: EvalResults, table: SampleTable) -> None:
    """Where the server said why a response ended, the guess from its length is not needed."""
    if results.requests is None:
        return
    docs = [(table.task, int(doc)) for doc in table.frame["doc_id"]]
    known = [doc in results.requests.finished for doc in docs]
    cut = [doc in results.requests.cut for doc in docs]
    guessed = table.frame["truncated"]
    table.frame["truncated"] = [
        now if sure else bool(guess) for sure, now, guess in zip(known, cut, guessed, strict=True)
    ]


def _compare_task(results: EvalResults, task: str, table: SampleTable) -> None:
    rows = [row for row in results.sheet.rows if row.task == task]
    for metric in dict.fromkeys(row.metric for row in rows):
        if metric not in table.metrics:
            results.warnings.append(f"{metric} of {task} is in the results and in no sample")
    for metric in table.metrics:
        what = _unjudgeable(results.raw, task, metric, table)
        if what:
            table.frame[f"judged:{metric}"] = False
            results.warnings.append(f"{metric} of {task} is {what} per sample, it cannot be judged sample by sample")
    expected = next((row.n for row in rows if row.n is not None), None)
    read = max(table.n_records().values(), default=0)
    if expected is not None and read < expected:
        results.warnings.append(f"{task}: {read} of {expected} samples could be read")


def _unjudgeable(raw: Mapping[str, Any], task: str, metric: str, table: SampleTable) -> str:
    """What a metric's per-sample values are when they do not say how right a sample is, else ''."""
    for item in metric_list(raw, task):
        if item.get("metric") == metric and item.get("aggregation") in _LOG_LIKELIHOOD_AGGREGATIONS:
            return "a log-likelihood"
    odd = table.odd.get(metric)
    if not odd:
        return "a log-likelihood" if metric.lower().endswith(("perplexity", "ppl")) else ""
    judged = int(table.frame[f"judged:{metric}"].sum())
    kind = max(odd, key=lambda name: odd[name])
    return kind if not judged else ""
