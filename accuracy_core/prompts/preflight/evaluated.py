"""Facts from the results of an evaluation: requests as the server saw them, and what the filters made of the answers.

Texts and ids are taken from some documents of each task, evenly spread; finish reasons count over all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from accuracy_core.evals.readers.normal_form import EvalResults
from accuracy_core.evals.readers.requests_of import SentRequest, sent_request
from accuracy_core.evals.readers.responses import length_limit
from accuracy_core.evals.readers.sample_table import SampleTable
from accuracy_core.prompts.preflight.facts import FilterFacts, SeenRequest
from accuracy_core.prompts.preflight.limits import limits

#: what lm-eval's regular expressions give when nothing matches, unless the task says otherwise
_FALLBACK = "[invalid]"


def requests_seen(results: EvalResults, tokenizer: Any) -> tuple[SeenRequest, ...]:
    """Every generation whose finish reason is known, and the sampled ones with their ids and texts.

    Multiple-choice requests are sent as token ids, so nothing can go wrong with them on the way: they are left out.
    """
    found: list[SeenRequest] = []
    index = results.requests
    if index is None:
        return ()
    for task, table in results.samples.items():
        sampled = set()
        for row in _sample(table, None):
            record = table.record(row)
            request = sent_request(record.get("arguments"))
            if request.kind == "loglikelihood":
                break
            doc_id = int(table.frame["doc_id"].iloc[row])
            sampled.add((task, doc_id))
            found += _of_document(results, task, doc_id, request, record, tokenizer)
        if sampled:
            others = sorted(key for key in index.finished if key[0] == task and key not in sampled)
            found += [SeenRequest(task=task, finish_reason=_reason(key in index.cut)) for key in others]
    return tuple(found)


def filter_facts(results: EvalResults) -> tuple[FilterFacts, ...]:
    """What each filter of each generation task made of the sampled answers."""
    return tuple(
        fact
        for task, table in results.samples.items()
        for name in table.n_records()
        if (fact := _filter(results, task, table, name)) is not None
    )


def _of_document(
    results: EvalResults, task: str, doc_id: int, request: SentRequest, record: Mapping[str, Any], tokenizer: Any
) -> Iterator[SeenRequest]:
    assert results.requests is not None
    limit, needed = length_limit(request.gen_kwargs), _length(tokenizer, record.get("target"))
    for seen in results.requests.records(task, doc_id):
        yield SeenRequest(
            text=request.prompt if request.kind == "text" else None,
            messages=request.messages,
            token_ids=seen.prompt_token_ids,
            output_token_ids=seen.token_ids,
            finish_reason=seen.finish_reason,
            task=task,
            answer_fits=None if limit is None or needed is None else needed < limit,
        )


def _length(tokenizer: Any, target: Any) -> int | None:
    """Tokens of the expected answer; None where it is no text (the number of a choice)."""
    if tokenizer is None or not isinstance(target, str) or not target.strip():
        return None
    return len(tokenizer(target, add_special_tokens=False, return_attention_mask=False).input_ids)


def _filter(results: EvalResults, task: str, table: SampleTable, name: str) -> FilterFacts | None:
    steps = _steps(results, task, name)
    nothing = {"", _FALLBACK, *(str(step["fallback"]) for step in steps if step.get("fallback") is not None)}
    patterns = [re.compile(text) for step in steps if (text := step.get("regex_pattern"))]
    rows = _sample(table, name)
    unmatched, fitting = 0, 0
    for row in rows:
        record = table.record(row)
        request = sent_request(record.get("arguments"))
        if request.kind == "loglikelihood":
            return None
        unmatched += _is_nothing(record.get("filtered_resps"), nothing)
        example = f"{request.prompt} {record.get('target', '')}"
        fitting += all(pattern.search(example) for pattern in patterns)
    return FilterFacts(
        task=task,
        filter=name,
        samples=len(rows),
        unmatched=unmatched,
        right=_right(table, rows),
        matches_examples=fitting > 0 if patterns and rows else None,
    )


def _steps(results: EvalResults, task: str, name: str) -> list[Mapping[str, Any]]:
    """The steps of a filter, as the results' own copy of the task's file has them."""
    configs = results.raw.get("configs")
    config = configs.get(task) if isinstance(configs, Mapping) else None
    listed = config.get("filter_list") if isinstance(config, Mapping) else None
    for item in listed if isinstance(listed, list) else []:
        if isinstance(item, Mapping) and item.get("name") == name and isinstance(item.get("filter"), list):
            return [step for step in item["filter"] if isinstance(step, Mapping)]
    return []


def _is_nothing(filtered: Any, nothing: set[str]) -> bool:
    answers = filtered if isinstance(filtered, list) else [filtered]
    return all(answer is None or answer == [] or (isinstance(answer, str) and answer in nothing) for answer in answers)


def _right(table: SampleTable, rows: list[int]) -> int:
    """Documents that some metric calls fully right."""
    best = np.zeros(len(rows), bool)
    for metric in table.metrics:
        values = table.frame[f"value:{metric}"].to_numpy()[rows]
        best |= (values >= 1) & (table.frame[f"judged:{metric}"].to_numpy()[rows] != 0)
    return int(best.sum())


def _sample(table: SampleTable, name: str | None) -> list[int]:
    """Rows of some documents, evenly spread: under one filter, or under the first that there is."""
    names = list(table.n_records())
    wanted = names[0] if name is None and names else name
    rows = np.flatnonzero((table.frame["filter"].astype(str) == wanted).to_numpy())
    picks = np.linspace(0, len(rows) - 1, min(len(rows), limits().sampled_documents)).round().astype(int)
    return [int(rows[pick]) for pick in picks]


def _reason(cut: bool) -> str:
    return "length" if cut else "stop"
