"""The inputs of one call of an engine, saved so that the call can be replayed off the device."""

from __future__ import annotations

from pydantic import Field, JsonValue

from accuracy_core.schemas.base import Schema


class CallSnapshot(Schema):
    """`<request id>-call<n>.json`; its tensors are in a safetensors file beside it.

    Tensors, of this request's tokens only: `input_ids` and `positions` (tokens,) as the model was given them,
    `kv.LAYER.key|value` (kv_heads, first_position, head_dim) that attention reads, `slot_mapping.GROUP` (tokens,) and
    `block_table.GROUP` of paged caches, and `logits` float32 (1, vocab), the row that the call led to, if any.
    """

    request_id: str
    engine: str = Field(description="vllm or transformers")
    call: int = Field(ge=0, description="number of the call within the replay, from 0")
    first_position: int = Field(ge=0, description="position of the call's first token")
    tokens: int = Field(ge=1, description="tokens of this request in the call")
    prompt_length: int
    batch_tokens: int = Field(description="tokens of all requests in the call")
    token_ids: list[int] = Field(description="tokens of the call, as they were sent to the engine")
    prefix_token_ids: list[int] = Field(description="all tokens before them")
    row: int | None = Field(None, description="generated token that the call's logits predict; None: partial prefill")
    tensors: str = Field(description="name of the safetensors file in the same folder")
    block_size: int | None = Field(None, description="tokens per block of a paged KV cache")
    attention: dict[str, dict[str, JsonValue]] = Field(
        default_factory=dict, description="cache group -> scalars of the attention metadata"
    )
    missing: dict[str, str] = Field(default_factory=dict, description="tensor -> why it was not saved")
