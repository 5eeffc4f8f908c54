"""What crosses to an engine and back: requests with forced tokens, and files of tensors."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from accuracy_core.schemas.base import Part, Schema


class CaptureSpec(Part):
    """What to record while replaying."""

    logits: bool = Field(True, description="raw full-vocabulary rows, float32 (tokens, vocab)")
    kv: bool = Field(False, description="K and V of every layer")
    modules: list[str] = Field(default_factory=list, description="module patterns to record")


class ReplayRequest(Schema):
    """Replay `forced_token_ids` after `prompt_token_ids` through the decode path, teacher-forced.

    With an empty `forced_token_ids`, `max_new_tokens` tokens are generated greedily (past EOS).
    """

    request_id: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    prompt_token_ids: list[int] = Field(min_length=1)
    forced_token_ids: list[int] = Field(default_factory=list)
    max_new_tokens: int | None = Field(None, ge=1)
    capture: CaptureSpec = Field(default_factory=CaptureSpec)


Route = Literal["forced_decode", "reprompt", "single_forward"]


class ReplayResult(Schema):
    """Answer to a ReplayRequest. `tensors` is a safetensors file; `logits` in it is float32 (tokens, vocab)."""

    request_id: str
    token_ids: list[int] = Field(description="tokens that the engine emitted, one per recorded row")
    argmax_ids: list[int] = Field(default_factory=list, description="argmax of each recorded row")
    tensors: str | None = Field(None, description="path of the safetensors file")
    names: list[str] = Field(default_factory=list, description="names of the tensors in it")
    route: Route = "forced_decode"
    shift_free: bool = Field(
        False, description="only log-probabilities were to be had: rows are known up to a constant"
    )
    error: str | None = None
