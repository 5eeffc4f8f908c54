"""Scores of the documents that were fully answered before an evaluation stopped."""

from __future__ import annotations

from collections import defaultdict
from typing import Any


def partial_scores(tasks: dict[str, Any], answers: dict[tuple[int, int], Any]) -> dict[str, list[float]]:
    """`task/metric,filter` -> [value, documents], by lm-eval's own filters and metrics.

    `tasks` maps a name to an lm-eval Task whose requests are built; `answers` maps (id of a request, repeat) to its
    answer. A task whose metrics fail on so few documents is left out.
    """
    scores: dict[str, list[float]] = {}
    for name, task in tasks.items():
        try:
            scores.update(_of_task(name, task, answers))
        except Exception:  # any task's own scoring code
            continue
    return scores


def _of_task(name: str, task: Any, answers: dict[tuple[int, int], Any]) -> dict[str, list[float]]:
    by_doc: dict[int, list[Any]] = defaultdict(list)
    for request in task.instances:
        by_doc[request.doc_id].append(request)
    complete = {
        doc: sorted(requests, key=lambda request: request.idx)
        for doc, requests in by_doc.items()
        if all((id(request), repeat) in answers for request in requests for repeat in range(request.repeats or 1))
    }
    if not complete:
        return {}
    task._instances = [request for requests in complete.values() for request in requests]
    for request in task._instances:
        request.resps = [answers[id(request), repeat] for repeat in range(request.repeats or 1)]
    task.apply_filters()
    values: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for requests in complete.values():
        for filter_name in requests[0].filtered_resps:
            metrics = task.process_results(
                requests[0].doc, [request.filtered_resps[filter_name] for request in requests]
            )
            for metric, value in metrics.items():
                values[metric, filter_name].append(value)
    aggregate = task.aggregation()
    return {
        f"{name}/{metric},{filter_name}": [float(aggregate[metric](items)), len(items)]
        for (metric, filter_name), items in values.items()
        if metric in aggregate
    }
