"""The four files of `task_analysis/`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from accuracy_core.evals.deviations import DeviatedPrompts, Deviations
from accuracy_core.evals.prompt_records import PromptBuilder, response_of, sample_metrics
from accuracy_core.evals.readers.requests_of import sent_request
from accuracy_core.evals.readers.responses import response_texts
from accuracy_core.evals.task_report import task_report
from accuracy_core.evals.verdict_table import TaskVerdicts
from accuracy_core.schemas import DeviatedPrompts as DeviatedPromptsFile
from accuracy_core.schemas import ResultsSummary, RunDir, SampleRecord, TaskStatus, write_text

#: how many are written out; the counts beside them are of all
MAX_PROMPTS_ON_DISK = 1000
MAX_DEVIATING_SHOWN = 200
MAX_MATCHING_SHOWN = 100


def write_analysis(
    directory: RunDir,
    status: TaskStatus,
    verdicts: dict[str, TaskVerdicts],
    deviations: Deviations,
    builder: PromptBuilder,
    with_reference: bool,
) -> ResultsSummary:
    """Write report, status, summary and deviated prompts; returns the summary."""
    prompts = DeviatedPrompts(deviations.deviating, builder)
    errors = DeviatedPrompts(deviations.model_errors, builder)
    summary = _summary(verdicts, prompts)
    folder = directory.task_analysis
    directory.write(folder / "task_status.json", status)
    directory.write(folder / "results_summary.json", summary)
    directory.write(
        directory.deviated_prompts,
        DeviatedPromptsFile(
            mode="with_reference" if with_reference else "target_only",
            prompts=prompts[:MAX_PROMPTS_ON_DISK],
            model_errors=errors[:MAX_PROMPTS_ON_DISK],
            note=_note(status, deviations),
        ),
    )
    write_text(folder / "task_report.txt", task_report(status, summary))
    return summary


def _note(status: TaskStatus, deviations: Deviations) -> str:
    total = len(deviations.deviating)
    if not status.n_records:
        return "no samples: no prompt can be extracted"
    if total == 0 and len(deviations.model_errors):
        return "no sample is worse than the reference; those wrong in both are listed as model errors"
    if total == 0:
        return "no sample deviates"
    return f"the first {MAX_PROMPTS_ON_DISK} of {total}" if total > MAX_PROMPTS_ON_DISK else ""


def _summary(verdicts: dict[str, TaskVerdicts], prompts: DeviatedPrompts) -> ResultsSummary:
    outlines = prompts.outlines
    all_docs = sum(verdict.table.frame["doc_id"].nunique() for verdict in verdicts.values())
    deviating = [
        _sample(verdicts[outlines.tasks[int(outlines.task[item])]], row)
        for item in prompts.order[:MAX_DEVIATING_SHOWN]
        for row in outlines.rows(int(item))
    ]
    matching = []
    share = max(1, MAX_MATCHING_SHOWN // max(1, len(verdicts)))
    for code, verdict in enumerate(verdicts.values()):
        own = set(outlines.doc_id[outlines.task == code].tolist())
        matching += [_sample(verdict, row) for row in _matching_rows(verdict, own, share)]
    return ResultsSummary(
        deviating=deviating,
        matching=matching,
        n_deviating=len(outlines),
        n_matching=all_docs - len(outlines),
    )


def _matching_rows(verdict: TaskVerdicts, deviating: set[int], count: int) -> Iterator[int]:
    """First rows of documents that do not deviate: right ones, then those not judged, then model errors."""
    docs = verdict.table.frame["doc_id"].to_numpy()
    seen: set[int] = set()
    order = np.concatenate([np.flatnonzero(verdict.own == value) for value in (1, -1, 0)])
    for row in order:
        doc = int(docs[row])
        if doc not in seen and doc not in deviating:
            seen.add(doc)
            yield int(row)
            if len(seen) == count:
                return


def _sample(verdict: TaskVerdicts, row: int) -> SampleRecord:
    table = verdict.table
    record = table.record(row)
    request = sent_request(record.get("arguments"))
    response, _ = response_of(record, request)
    filtered = record.get("filtered_resps")
    right = int(verdict.own[row])
    return SampleRecord(
        task=table.task,
        doc_id=int(table.frame["doc_id"].iloc[row]),
        filter=str(table.frame["filter"].iloc[row]),
        right=None if right < 0 else bool(right),
        prompt=request.prompt,
        target=_target(record, request.continuations),
        response=response,
        filtered_response=response_texts([filtered]) if request.kind != "loglikelihood" else [],
        metrics=sample_metrics(record),
        truncated=bool(table.frame["truncated"].iloc[row]),
    )


def _target(record: dict[str, object], continuations: list[str]) -> str:
    """The expected text; for multiple choice the choice that the index means."""
    target = str(record.get("target", ""))
    if len(continuations) > 1 and target.isdigit() and int(target) < len(continuations):
        return continuations[int(target)]
    return target
