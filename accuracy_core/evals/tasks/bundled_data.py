"""Data of the bundled tasks. lm-eval loads this file by its path, so it imports nothing of the package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def load(**splits: Any) -> dict[str, Any]:
    """The splits as datasets, from the JSONL files beside this file: independent of the working directory and the
    network.

    lm-eval passes the task's `dataset_kwargs` (split -> file name) together with its metadata, which is ignored.
    """
    from datasets import Dataset

    return {
        split: Dataset.from_list(_rows(name))
        for split, name in splits.items()
        if isinstance(name, str) and name.endswith(".jsonl")
    }


def _rows(name: str) -> list[dict[str, Any]]:
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]
