"""One deviated prompt from its sample records, the request log and the reference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accuracy_core.evals.comparison import Comparison
from accuracy_core.evals.readers.columns import STANDARD_FIELDS, judge_value
from accuracy_core.evals.readers.requests_of import SentRequest, sent_request
from accuracy_core.evals.readers.responses import response_texts
from accuracy_core.evals.request_index import RequestIndex
from accuracy_core.evals.request_log import RequestRecord
from accuracy_core.evals.verdict_table import TaskVerdicts
from accuracy_core.schemas import DeviatedPrompt


@dataclass
class PromptBuilder:
    """Builds prompts from the rows of a document, all filters merged."""

    verdicts: dict[str, TaskVerdicts]
    comparison: Comparison | None
    requests: RequestIndex | None

    def build(self, task: str, rows: Sequence[int], badness: float) -> DeviatedPrompt:
        """`rows` are those that deviate; the first one's filter and metrics stand for the sample."""
        verdict = self.verdicts[task]
        table = verdict.table
        record = table.record(rows[0])
        request = sent_request(record.get("arguments"))
        doc_id = int(table.frame["doc_id"].iloc[rows[0]])
        records = self.requests.records(task, doc_id) if self.requests else []
        response, chosen = response_of(record, request)
        exact = _exact(records, request, chosen)
        reference = self._reference(task, rows[0])
        return DeviatedPrompt(
            task=task,
            doc_id=doc_id,
            filter=str(table.frame["filter"].iloc[rows[0]]),
            kind=request.kind,
            prompt=request.prompt,
            messages=request.messages,
            continuations=request.continuations,
            target=str(record.get("target", "")),
            response=response,
            metrics=sample_metrics(record),
            truncated=exact.get("finish_reason") == "length"
            if exact.get("finish_reason")
            else bool(table.frame["truncated"].iloc[rows[0]]),
            verdicts=_verdicts(verdict, doc_id),
            deviated_filters=list(dict.fromkeys(str(table.frame["filter"].iloc[row]) for row in rows)),
            badness=badness,
            reference_response=reference[0],
            reference_metrics=reference[1],
            **exact,
        )

    def _reference(self, task: str, row: int) -> tuple[list[str] | None, dict[str, float] | None]:
        joined = self.comparison.tasks.get(task) if self.comparison else None
        if joined is None or joined.reference_row[row] < 0:
            return None, None
        record = joined.reference.record(int(joined.reference_row[row]))
        response, _ = response_of(record, sent_request(record.get("arguments")))
        return response, sample_metrics(record)


def _verdicts(verdict: TaskVerdicts, doc_id: int) -> dict[str, bool | None]:
    """Verdict of every filter; where a document was logged twice, wrong once is wrong."""
    frame = verdict.table.frame
    found: dict[str, bool | None] = {}
    for row in frame.index[frame["doc_id"] == doc_id]:
        name, right = str(frame["filter"].iloc[row]), int(verdict.own[row])
        own = None if right < 0 else bool(right)
        found[name] = own if found.get(name, own) in (None, own) else False
    return found


def response_of(record: Mapping[str, Any], request: SentRequest) -> tuple[list[str], int | None]:
    """(texts, chosen choice): what was generated, or the likeliest continuation and its number."""
    if request.kind != "loglikelihood":
        return response_texts(record.get("resps")), None
    values = [_loglikelihood(item) for item in record.get("resps") or []]
    if not request.continuations or len(values) != len(request.continuations) or any(math.isnan(v) for v in values):
        return [], None
    chosen = max(range(len(values)), key=values.__getitem__)
    return [request.continuations[chosen]], chosen


def sample_metrics(record: Mapping[str, Any]) -> dict[str, float]:
    """The sample's own metrics that are numbers (a list of booleans as its mean)."""
    listed = record.get("metrics")
    names = listed if isinstance(listed, list) else [name for name in record if name not in STANDARD_FIELDS]
    judged = {str(name): judge_value(record[name]) for name in names if name in record}
    return {name: number for name, (number, problem) in judged.items() if not problem}


def _loglikelihood(item: Any) -> float:
    """From `[["-7.65", "False"]]`, `[[-7.65, false]]` or `[-7.65, false]`."""
    while isinstance(item, list | tuple) and item:
        item = item[0]
    try:
        return float(item)
    except (TypeError, ValueError):
        return math.nan


def _exact(records: list[RequestRecord], request: SentRequest, chosen: int | None) -> dict[str, Any]:
    """Token ids and finish reason as the server gave them.

    A multiple-choice sample is replayed as its context with the chosen continuation as the output.
    """
    wanted = chosen or 0
    record = next((item for item in records if item.index == wanted), None)
    if record is None or record.prompt_token_ids is None:
        return {}
    if request.kind == "loglikelihood":
        split = record.n_context_tokens or len(record.prompt_token_ids)
        ids = record.prompt_token_ids
        return {"token_ids": ids[:split], "output_token_ids": ids[split:] or None}
    return {
        "token_ids": record.prompt_token_ids,
        "output_token_ids": record.token_ids,
        "finish_reason": record.finish_reason,
    }
