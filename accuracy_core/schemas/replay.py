"""What crosses to an engine and back: requests with forced tokens, and files of tensors."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from accuracy_core.schemas.base import Part, Schema


class CaptureSpec(Part):
    """What to record while replaying."""

    logits: bool = Field(True, description="raw full-vocabulary rows, float32 (tokens, vocab)")
    kv: bool = Field(False, description="K and V of every layer")
    modules: list[str] = Field(
        default_factory=list, description="raw taps of this engine to record, e.g. model.norm:out0 (see capture.taps)"
    )


class Replacement(Part):
    """Reference rows put in place of what the engine computed at one tap (tensor replacement).

    Rows `first_row` … of the tapped tensor are set, one per row of the given tensor; with `columns` only those columns
    [start, stop) of the last dimension (one part of a fused projection).
    """

    tap: str = Field(description="raw tap of this engine, e.g. model.layers.1.mlp:out0")
    file: str = Field(description="safetensors file")
    tensor: str = Field(description="name in the file; (rows, features)")
    first_row: int = Field(0, ge=0, description="position of the first row")
    columns: tuple[int, int] | None = None


class SnapshotSpec(Part):
    """Which engine calls to save with their inputs, so that a failing step can be replayed off the device."""

    folder: str = Field(description="where the snapshots go; one safetensors and one JSON file each")
    calls: list[int] = Field(default_factory=list, description="numbers of engine calls within the replay, from 0")
    positions: list[int] = Field(default_factory=list, description="calls that run a token at one of these positions")
    budget: int = Field(1, ge=1, description="save at most this many calls")


class ReplayConditions(Part):
    """How an engine is to run a replay, besides what is asked of it: the ways of serving that must not change logits.

    The neutral value is an accuracy run's: one request at a time, each prompt computed whole.
    """

    together: bool = Field(False, description="all requests are in the engine at once, in one batch where they fit")
    prefill_chunk: int | None = Field(
        None, ge=1, description="prompts are prefilled in pieces of at most this many tokens"
    )
    read_prefixes: bool = Field(
        False, description="blocks that an earlier request left in the prefix cache are taken instead of computed"
    )
    forget_prefixes: bool = Field(False, description="the prefix cache is emptied before the first request")


class ReplayConduct(Part):
    """What the engine really did for one request, as its scheduler saw it: proof that the conditions took place."""

    cached_tokens: int = Field(0, ge=0, description="prompt tokens that came out of the prefix cache")
    prefill_chunks: list[int] = Field(default_factory=list, description="prompt tokens computed by each prefill call")
    largest_batch: int = Field(1, ge=1, description="most requests in one engine call of this one, itself included")


class ReplayRequest(Schema):
    """Replay `forced_token_ids` after `prompt_token_ids` through the decode path, teacher-forced.

    With an empty `forced_token_ids`, `max_new_tokens` tokens are generated greedily (past EOS).
    """

    request_id: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    prompt_token_ids: list[int] = Field(min_length=1)
    forced_token_ids: list[int] = Field(default_factory=list)
    max_new_tokens: int | None = Field(None, ge=1)
    capture: CaptureSpec = Field(default_factory=CaptureSpec)
    replacements: list[Replacement] = Field(default_factory=list)
    snapshot: SnapshotSpec | None = None


Route = Literal["forced_decode", "reprompt", "single_forward"]


class ReplayResult(Schema):
    """Answer to a ReplayRequest. `tensors` is a safetensors file; `logits` in it is float32 (tokens, vocab).

    Captures are in it under the names of `capture.taps`: `tap.MODULE:POINT` (positions, features) and
    `kv.LAYER.key|value` (kv_heads, positions, head_dim), positions being those of prompt + forced tokens without the
    last, whose K and V are never computed. With tensor parallelism the other ranks' files are in `shards`.
    """

    request_id: str
    token_ids: list[int] = Field(description="tokens that the engine emitted, one per recorded row")
    argmax_ids: list[int] = Field(default_factory=list, description="argmax of each recorded row")
    seen_prompt_ids: list[int] = Field(
        default_factory=list, description="prompt as the engine's model runner was given it; empty: not known"
    )
    tensors: str | None = Field(None, description="path of the safetensors file")
    names: list[str] = Field(default_factory=list, description="names of the tensors in it")
    shards: list[str] = Field(default_factory=list, description="captures of tensor-parallel ranks 1, 2, …")
    missing: dict[str, str] = Field(
        default_factory=dict,
        description="tensor that was asked for (its name in the file, or `kv` for all of them) -> why it, or some "
        "positions of it, are not here",
    )
    snapshots: list[str] = Field(default_factory=list, description="JSON files of saved engine calls")
    block_size: int | None = Field(None, description="tokens per block of the KV cache, where K and V were captured")
    route: Route = "forced_decode"
    shift_free: bool = Field(
        False, description="only log-probabilities were to be had: rows are known up to a constant"
    )
    conduct: ReplayConduct | None = Field(None, description="how it was run; empty: the engine does not tell")
    error: str | None = None
