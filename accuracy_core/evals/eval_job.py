"""What an evaluation is asked to do, and what it brought."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue

from accuracy_core.errors import InfrastructureError
from accuracy_core.evals.request_log import RequestRecord, read_records
from accuracy_core.schemas import Schema


class EvalJob(Schema):
    """One evaluation, as it crosses to the process that runs lm-eval. Holds no secret: only the key's variable name."""

    tasks: list[str] = Field(min_length=1)
    results_dir: str
    backend: Literal["server", "hf"] = "server"
    base_url: str = Field("", description="root of an OpenAI-compatible server, without /v1")
    model: str = Field(description="name the server knows the model by, or the HF folder of a reference run")
    tokenizer: str
    include_path: str | None = None
    task_folders: list[str] | None = Field(
        None, description="folders of lm-eval's own task files; none: all of them, which takes 10 s to index"
    )
    limit: int | None = None
    num_fewshot: int | None = None
    gen_kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    chat: bool = False
    system_prompt: str | None = None
    num_concurrent: int = 8
    seed: int = 1234
    request_timeout_s: float = 300
    max_retries: int = 3
    max_length: int = Field(2048, description="context of the server, prompt plus answer, in tokens")
    long_prompts: Literal["error", "truncate"] = "error"
    cache_dir: str | None = None
    cache_identity: str = ""
    api_key_env: str | None = None
    bootstrap_iters: int = 1000
    dtype: str = Field("float32", description="dtype of a reference run")
    batch_size: int = Field(16, description="batch of a reference run")
    num_threads: int = Field(1, description="OMP threads; one is fastest on a small busy machine")


@dataclass(frozen=True)
class EvalRun:
    """A finished evaluation. `results_dir` holds `results_*.json` and `samples_*.jsonl` under lm-eval's own names."""

    scores: dict[str, float]
    results_dir: Path
    files: list[Path]
    settings: dict[str, JsonValue]
    n_requests: int
    n_from_cache: int
    n_empty: int = 0
    n_null: int = 0
    n_truncated: int = 0
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def requests_file(self) -> Path | None:
        """JSON lines with one record per request: token ids, finish reason, text. None for a reference run."""
        return next((path for path in self.files if path.name.startswith("requests_")), None)

    def requests(self) -> Iterator[RequestRecord]:
        """Every request that was made to the server, read from disk one by one."""
        return read_records(self.requests_file) if self.requests_file else iter(())


class EvaluationFailed(InfrastructureError):
    """The evaluation stopped before its end.

    `done` and `total` count requests; `per_task` maps a task to (answered, asked); `partial_scores` maps
    `task/metric,filter` to (value, documents) over what was answered.
    """

    def __init__(self, message: str, *, fix: str = "", log_tail: str = "") -> None:
        super().__init__(message, fix=fix, log_tail=log_tail)
        self.done = 0
        self.total = 0
        self.per_task: dict[str, tuple[int, int]] = {}
        self.partial_scores: dict[str, tuple[float, int]] = {}

    def as_dict(self) -> dict[str, JsonValue]:
        """What is known of the part that was done."""
        return {
            "message": self.message,
            "done": self.done,
            "total": self.total,
            "per_task": {task: list(counts) for task, counts in self.per_task.items()},
            "partial_scores": {key: list(found) for key, found in self.partial_scores.items()},
        }
