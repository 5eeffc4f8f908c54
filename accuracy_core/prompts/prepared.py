"""Prompts as they are analysed: token ids, and where they came from."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from accuracy_core.schemas import Part, Schema

Source = Literal["text", "token_ids", "deviated", "curated"]


class PreparedPrompt(Part):
    """One prompt to analyse. `index` is its number everywhere: in `prompt_<index>/`, in the report, in a GuardHit."""

    index: int = Field(ge=0)
    token_ids: list[int] = Field(min_length=1, description="prompt ids that reference and target both see")
    text: str = Field("", description="the prompt as text, for display; decoded when only ids were given")
    source: Source
    label: str = Field("", description="short name for display: task and document, or curated id")
    purpose: str = Field("", description="what a curated prompt is there to catch")
    task: str | None = None
    doc_id: int | None = None
    ids_from_server: bool = Field(False, description="ids as the evaluation server reported them, not retokenised")


class PreparedPrompts(Schema):
    """`prompt_analysis/prompts.json`: the prompts of a run directory, and the target that was analysed."""

    prompts: list[PreparedPrompt] = Field(default_factory=list)
    curated: bool = Field(False, description="no sample deviated: the curated set was taken instead")
    note: str = ""
    skipped: list[str] = Field(default_factory=list, description="prompts that were left out, and why")
    target: str = Field("", description="fingerprint of the target; results of two targets never share a directory")

    def token_ids(self) -> list[list[int]]:
        return [list(prompt.token_ids) for prompt in self.prompts]
