"""Small lm-eval output directories, written as lm-eval writes them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

STAMP = "2026-04-01T10-00-00.000001"


def sample(doc_id: int, value: Any, *, metric: str = "exact_match", name: str = "none", **more: Any) -> dict[str, Any]:
    """One record of a generation task."""
    record = {
        "doc_id": doc_id,
        "doc": {"q": f"question {doc_id}"},
        "target": f"answer {doc_id}",
        "arguments": {
            "gen_args_0": {"arg_0": f"Q: question {doc_id}\nA:", "arg_1": {"until": ["\n"], "max_gen_toks": 9}}
        },
        "resps": [[f" response {doc_id}"]],
        "filtered_resps": [f"response {doc_id}"],
        "filter": name,
        "metrics": [metric],
        "doc_hash": hashlib.sha256(f"doc {doc_id}".encode()).hexdigest(),
        "prompt_hash": hashlib.sha256(f"prompt {doc_id}".encode()).hexdigest(),
        "target_hash": hashlib.sha256(f"target {doc_id}".encode()).hexdigest(),
        metric: value,
    }
    return record | more


def write_run(
    folder: Path,
    samples: dict[str, Sequence[dict[str, Any] | str]],
    *,
    stamp: str = STAMP,
    model: str = "maker/m",
    scores: dict[str, dict[str, Any]] | None = None,
    extra: dict[str, Any] | None = None,
) -> Path:
    """A run of `samples` (task -> records, or raw lines); scores default to the means of exact_match per filter."""
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, Any]] = scores or {}
    for task, records in samples.items():
        lines = [item if isinstance(item, str) else json.dumps(item) for item in records]
        (folder / f"samples_{task}_{stamp}.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        if scores is None:
            whole = [item for item in records if isinstance(item, dict)]
            names = dict.fromkeys(item["filter"] for item in whole)
            results[task] = {
                f"exact_match,{name}": _mean([item["exact_match"] for item in whole if item["filter"] == name])
                for name in names
            }
    raw = {
        "results": results,
        "group_subtasks": {},
        "configs": {task: {"task": task} for task in samples},
        "higher_is_better": {task: {"exact_match": True} for task in samples},
        "n-samples": {
            task: {"original": len(records), "effective": len({_doc(item) for item in records})}
            for task, records in samples.items()
        },
        "model_name": model,
    }
    (folder / f"results_{stamp}.json").write_text(json.dumps(raw | (extra or {})), encoding="utf-8")
    return folder


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _doc(item: dict[str, Any] | str) -> Any:
    return item["doc_id"] if isinstance(item, dict) else item
