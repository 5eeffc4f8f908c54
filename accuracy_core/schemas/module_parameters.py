"""Parameters of the module validation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from accuracy_core.schemas.base import Part


class ModuleParameters(Part):
    """Single modules of the target against the reference's, on seeded inputs."""

    kinds: list[str] | None = Field(
        None,
        min_length=1,
        description="embedding, rms_norm, rope, attention, mlp, router, experts, decoder_layer; "
        "empty: all that the model has",
    )
    layers: list[Annotated[int, Field(ge=0)]] = Field(
        default_factory=lambda: [0], min_length=1, description="decoder layers to look at"
    )
    n_inputs: int = Field(10, ge=1, le=1000, description="seeded inputs per module")
    prefill: int = Field(24, ge=1, description="rows of an input that come at once")
    decode: int = Field(4, ge=0, description="further rows, one by one through the KV cache")
    seed: int = Field(0, ge=0, description="seed of the first input; the others follow")
    weights: Literal["real", "seeded"] = Field(
        "real", description="the checkpoint's weights, or random ones of the same configuration"
    )
    executor: Literal["engine", "one_layer"] = Field(
        "engine",
        description="the engine's own layers, or transformers' layers one at a time, with no engine and little memory",
    )
