"""Which fault is injected into a target, how strong and where."""

from __future__ import annotations

from pydantic import Field, JsonValue

from accuracy_core.schemas.base import Schema


class FaultSpec(Schema):
    """A fault of the registry in `accuracy_core.faults`, by name. None means the fault's own default."""

    name: str = Field(description="name in the fault registry, e.g. mlp-scale")
    layer: int | None = Field(None, ge=0, description="decoder layer the fault sits in")
    strength: float | None = Field(None, description="size of the fault, in the fault's own unit")
    position: int | None = Field(None, ge=0, description="first token position that is affected")
    params: dict[str, JsonValue] = Field(default_factory=dict, description="further settings of this fault")
