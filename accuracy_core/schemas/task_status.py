"""Result of task analysis: scores against thresholds, and every sample's own verdict."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from accuracy_core.outcome import Outcome
from accuracy_core.schemas.base import Part, Schema


class ScoreRow(Part):
    """One score: a task (or group), a filter and a metric. `key` is `task/metric,filter`."""

    key: str
    task: str
    metric: str
    filter: str
    value: float
    stderr: float = float("nan")
    n: int | None = None
    higher_is_better: bool = True
    is_group: bool = False


class ThresholdResult(Part):
    """A threshold as given, resolved against the scores. `bound` is the number the score was held against."""

    given_key: str
    key: str | None = Field(None, description="`task/metric,filter` it resolved to")
    rule: Literal["minimum", "maximum", "mean_std", "fraction_of_reference"] = "minimum"
    bound: float = float("nan")
    value: float = float("nan")
    passed: bool
    reason: str = ""
    smallest_detectable_drop: float = Field(float("nan"), description="unpaired, at this n, power .8, alpha .05")
    n: int | None = None


class PairedTest(Part):
    """Paired comparison of one score with the reference on the same documents."""

    key: str
    n: int
    n_worse: int = Field(description="right in the reference, wrong here")
    n_better: int
    difference: float
    ci_low: float
    ci_high: float
    mcnemar_p: float
    margin: float = float("nan")
    non_inferior: bool | None = None
    detail: str = ""


class SampleRecord(Part):
    """One sample and filter, for display: the request, the answer and its own metrics."""

    task: str
    doc_id: int
    filter: str
    right: bool | None = Field(description="None: this metric does not judge single samples")
    prompt: str
    target: str
    response: list[str]
    filtered_response: list[str] = Field(default_factory=list)
    metrics: dict[str, float] = Field(default_factory=dict)
    truncated: bool = False


class TaskStatus(Schema):
    """`task_analysis/task_status.json`."""

    analyzer: str = "lm_eval"
    outcome: Outcome = Outcome.NUMERICS
    passed: bool | None = Field(description="None when nothing could be judged")
    scores: list[ScoreRow] = Field(default_factory=list)
    thresholds: list[ThresholdResult] = Field(default_factory=list)
    paired: list[PairedTest] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)
    n_samples: int = 0
    n_deviated: int = 0
    n_model_errors: int = Field(0, description="samples that the reference gets wrong too")
    n_records: dict[str, dict[str, int]] = Field(default_factory=dict, description="task -> filter -> records read")
    model: str = ""
    results_files: list[str] = Field(default_factory=list)
    settings: dict[str, JsonValue] = Field(default_factory=dict, description="how the evaluation was run")


class ResultsSummary(Schema):
    """`task_analysis/results_summary.json`: the samples, deviating ones first."""

    deviating: list[SampleRecord] = Field(default_factory=list)
    matching: list[SampleRecord] = Field(default_factory=list)
    n_deviating: int = 0
    n_matching: int = 0
