"""A sample whose answer was not right, with the request that was really sent."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from accuracy_core.schemas.base import Part, Schema


class DeviatedPrompt(Part):
    """One deviating sample.

    `prompt` is the rendered request text (few-shot or chat template applied; for a chat the JSON text of `messages`).
    `token_ids` are the prompt ids the server saw, when it returned them.
    """

    task: str
    doc_id: int
    filter: str = "none"
    kind: Literal["text", "chat", "loglikelihood"] = "text"
    prompt: str
    messages: list[dict[str, JsonValue]] | None = None
    continuations: list[str] = Field(default_factory=list, description="choices of a multiple-choice request")
    token_ids: list[int] | None = Field(None, description="prompt token ids as the server saw them")
    output_token_ids: list[int] | None = Field(None, description="token ids the server generated")
    finish_reason: str | None = None
    target: str = ""
    response: list[str] = Field(default_factory=list)
    metrics: dict[str, float] = Field(default_factory=dict, description="the sample's own metrics, as numbers")
    truncated: bool = False
    verdicts: dict[str, bool | None] = Field(
        default_factory=dict, description="filter -> whether the sample is right under it; None: not judged"
    )
    deviated_filters: list[str] = Field(
        default_factory=list, description="filters under which a deciding metric says that it deviates"
    )
    badness: float = Field(0.0, description="how far from right, or from the reference; orders samples worst first")
    reference_response: list[str] | None = None
    reference_metrics: dict[str, float] | None = None
    curated: bool = Field(False, description="a curated prompt taken because no sample deviated")


class DeviatedPrompts(Schema):
    """`task_analysis/deviated_prompts.json`. `model_errors` are wrong in the reference too: not the engine's."""

    mode: Literal["target_only", "with_reference", "curated"] = "target_only"
    prompts: list[DeviatedPrompt] = Field(default_factory=list)
    model_errors: list[DeviatedPrompt] = Field(default_factory=list)
    note: str = ""
