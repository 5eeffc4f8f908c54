"""Where the numbers first go wrong."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from accuracy_core.outcome import Verdict
from accuracy_core.schemas.base import Part, Schema
from accuracy_core.schemas.prompt_result import Phase


class ReplacementTrial(Part):
    """One prompt replayed with reference tensors in place of what the engine computed at `module`.

    `output`: the suspected module's own output is replaced, so the error must vanish. `inputs`: what the module's layer
    is given is replaced, so the error must stay; where it vanishes too, the fault lies further up. `every_layer`: the
    same module's output is replaced in every layer, since one and the same code runs in all of them. `together`: all
    modules that are wrong by themselves, `module` being the first. `comparable`: where one of these two healed, as many
    other modules, right by themselves and in front of those; far more of the error must be left, or it did not matter
    where reference tensors were put in.
    `l2_*`: L2 error over the dtype's noise, geometric mean over the rows (1: as the reference in that dtype); for a
    float32 target, which has no such noise, the L2 error itself, root mean square over the rows.
    """

    kind: Literal["output", "inputs", "every_layer", "together", "comparable"]
    module: str = Field(description="canonical tap that was replaced")
    prompt: int
    l2_before: float = float("nan")
    l2_after: float = float("nan")
    guards_before: int = 0
    guards_after: int = 0
    verdict_after: Verdict | None = None
    healed: bool | None = Field(None, description="the rows returned to what clean rows show; None: not possible")
    reason: str = Field("", description="why it was not possible")


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
    prompt: int | None = Field(None, description="prompt that the place was found on")
    contradictions: list[str] = Field(default_factory=list, description="where logits, tensors and KV disagree")
    trials: list[ReplacementTrial] = Field(default_factory=list, description="replacement experiments, in order")
    confirmation: str = Field("", description="the experiments' result in words, or why there was none")
