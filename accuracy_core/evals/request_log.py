"""What lm-eval's samples do not keep: token ids and finish reason of every request, as JSON lines beside them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from accuracy_core.schemas import Part


class RequestRecord(Part):
    """One request and its answer.

    `index` is the number of the request within its document (the choice, for multiple choice); `repeat` counts sampled
    repetitions. `prompt_token_ids` are those the server saw: context plus continuation for a log-likelihood.
    """

    task: str
    doc_id: int
    index: int = 0
    repeat: int = 0
    kind: Literal["generate_until", "loglikelihood", "loglikelihood_rolling"]
    prompt_token_ids: list[int] | None = None
    n_context_tokens: int | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    text: str | None = None
    logprob: float | None = None
    is_greedy: bool | None = None
    from_cache: bool = False


def read_records(path: Path) -> Iterator[RequestRecord]:
    """Records of a `requests_*.jsonl`, one by one. Lines that are none (a run killed while writing) are skipped."""
    with path.open("rb") as lines:
        for line in lines:
            try:
                yield RequestRecord.model_validate(json.loads(line))
            except (ValueError, ValidationError):
                continue
