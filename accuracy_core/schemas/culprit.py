"""Where the numbers first go wrong."""

from __future__ import annotations

from pydantic import Field

from accuracy_core.schemas.base import Schema
from accuracy_core.schemas.prompt_result import Phase


class Culprit(Schema):
    """None means: not located to that depth. `confirmed` None: no replacement experiment was made."""

    phase: Phase
    module: str | None = None
    layer: int | None = None
    head: int | None = None
    position: int | None = None
    branch: str = Field("", description="branch of the triage tree that was taken")
    evidence: list[str] = Field(default_factory=list)
    suspects: list[str] = Field(default_factory=list, description="what to look at next, in order")
    confirmed: bool | None = None
    next_step: str = Field("", description="what to do next, in words")
    next_command: str = Field("", description="command for that, to copy; empty when there is none")
