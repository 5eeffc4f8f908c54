"""Replay a saved engine call off the device: its tokens over its saved K and V, with Hugging Face on the CPU."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from accuracy_core.errors import ConfigurationError, InputMismatchError
from accuracy_core.schemas import EngineSpec, ReplayRequest, SnapshotSpec
from accuracy_core.schemas.call_snapshot import CallSnapshot

if TYPE_CHECKING:
    import torch

Prefix = Literal["saved", "recomputed", "none"]


@dataclass(frozen=True)
class SnapshotReplay:
    """What Hugging Face makes of a saved call.

    `positions` int64 (tokens,); `logits` float32 (tokens, vocab); `outputs`: canonical tap -> (tokens, features) in the
    dtype of the replay. `engine_logits` float32 (1, vocab): the engine's own row for the last token, to compare with
    `logits[-1:]`; None for partial prefill. `prefix`: whether the saved K and V were used, or computed again because
    they were not saved ("none": the call begins at position 0).
    """

    snapshot: CallSnapshot
    positions: torch.Tensor
    logits: torch.Tensor
    prefix: Prefix
    engine_logits: torch.Tensor | None = None
    outputs: dict[str, torch.Tensor] = field(default_factory=dict)


def snapshot_requests(
    requests: Sequence[ReplayRequest], spec: SnapshotSpec, *, prefix: str = ""
) -> list[ReplayRequest]:
    """The requests, with `spec` on those whose id begins with `prefix`. ConfigurationError when none does."""
    if not any(request.request_id.startswith(prefix) for request in requests):
        raise ConfigurationError(f"no request id begins with {prefix!r}", fix="give the beginning of a request's id")
    return [
        request.model_copy(update={"snapshot": spec}) if request.request_id.startswith(prefix) else request
        for request in requests
    ]


def read_snapshot(path: str | Path) -> tuple[CallSnapshot, dict[str, torch.Tensor]]:
    """A saved call and its tensors; K and V of other tensor-parallel ranks are put beside the first one's heads.

    Raises ConfigurationError when the files are not there or damaged.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(path)
    try:
        snapshot = CallSnapshot.from_json(path.read_text(encoding="utf-8"), source=path.name)
        first = path.parent / Path(snapshot.tensors).name
        tensors = load_file(first)
        for shard in sorted(path.parent.glob(f"{first.stem}.rank*.safetensors"), key=_rank):
            for name, tensor in load_file(shard).items():
                if name.startswith("kv."):
                    tensors[name] = torch.cat([tensors[name], tensor]) if name in tensors else tensor
    except (OSError, SafetensorError) as error:
        raise ConfigurationError(f"snapshot {path.name} cannot be read: {error}", fix="save it again") from error
    return snapshot, tensors


def replay_snapshot(
    path: str | Path,
    model_checkpoint: str,
    dtype: str = "float32",
    *,
    taps: Sequence[str] = (),
    num_threads: int = 1,
    trust_remote_code: bool = False,
) -> SnapshotReplay:
    """Run the saved call at `path` again with Hugging Face on the CPU in `dtype`, from the inputs that were saved.

    `taps`: canonical taps to record (see `capture.taps`). The token ids and positions are those that the engine's model
    was given, the K and V those that its attention read: what differs from the engine went wrong in this call, not
    before it. Raises ConfigurationError for a snapshot that cannot be read, and for K and V that do not fit the model.
    """
    import torch

    from accuracy_core.capture.hf_taps import HfTaps
    from accuracy_core.engines.hf_model import load_model, torch_threads

    snapshot, tensors = read_snapshot(path)
    spec = EngineSpec(
        engine="transformers", model=model_checkpoint, dtype=dtype, trust_remote_code=trust_remote_code,
    )  # fmt: skip
    model = load_model(spec)
    ids = tensors.get("input_ids", torch.tensor(snapshot.token_ids)).long()
    start = snapshot.first_position
    positions = tensors.get("positions", torch.arange(start, start + len(ids))).long()
    with torch.inference_mode(), torch_threads(num_threads):
        cache, prefix = _prefix(model, snapshot, tensors)
        with HfTaps(model, list(taps)) as recorder:
            output = model(
                input_ids=ids[None], position_ids=positions[None], past_key_values=cache, use_cache=True
            )  # fmt: skip
            outputs = recorder.collect()
    return SnapshotReplay(
        snapshot=snapshot,
        positions=positions,
        logits=output.logits[0].float(),
        prefix=prefix,
        engine_logits=tensors.get("logits"),
        outputs=outputs,
    )


def _prefix(model: Any, snapshot: CallSnapshot, tensors: dict[str, torch.Tensor]) -> tuple[Any, Prefix]:
    """A cache that holds every position before the call."""
    import torch

    from accuracy_core.capture.kv.reference import recording_cache

    cache = recording_cache(model.config)
    if not snapshot.first_position:
        return cache, "none"
    saved = _saved(model, tensors)
    if saved is None:
        model(input_ids=torch.tensor([snapshot.prefix_token_ids]), past_key_values=cache, use_cache=True)
        return cache, "recomputed"
    for layer, (key, value) in enumerate(saved):
        if key.shape[1] != snapshot.first_position:
            raise InputMismatchError(
                f"saved K of layer {layer} has shape {tuple(key.shape)}, the call begins at {snapshot.first_position}"
            )
        cache.update(key[None].to(model.dtype), value[None].to(model.dtype), layer)
    return cache, "saved"


def _saved(model: Any, tensors: dict[str, torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]] | None:
    """K and V of every layer, None when some were not saved. Raises InputMismatchError for another model's."""
    import torch

    from accuracy_core.capture.kv.reference import cached_kv, recording_cache

    cache = recording_cache(model.config)
    model(input_ids=torch.zeros(1, 1, dtype=torch.long), past_key_values=cache, use_cache=True)
    own = {name: _heads(found[0]) for name, found in cached_kv(cache).items()}
    saved = {name: tensor for name, tensor in tensors.items() if name.startswith("kv.")}
    foreign = [name for name in saved if own.get(name) != _heads(saved[name])]
    if foreign:
        name = foreign[0]
        raise InputMismatchError(
            f"{name} of the snapshot has {_heads(saved[name])} (heads, width), this model's has {own.get(name)}",
            fix="replay it with the checkpoint that the engine ran",
        )
    if set(saved) != set(own) or any(bool(torch.isnan(tensor).any()) for tensor in saved.values()):
        return None
    return [(saved[f"kv.{layer}.key"], saved[f"kv.{layer}.value"]) for layer in range(len(own) // 2)]


def _heads(tensor: torch.Tensor) -> tuple[int, int]:
    """(heads, width) of K or V (heads, positions, width)."""
    return tensor.shape[0], tensor.shape[2]


def _rank(path: Path) -> int:
    found = re.search(r"\.rank(\d+)\.", path.name)
    return int(found[1]) if found else 0
