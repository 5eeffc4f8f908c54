"""One request to the offline engine's process, and its answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accuracy_core.engines.checkpoint import tokens_to_generate
from accuracy_core.schemas import ReplayConduct, ReplayRequest, ReplayResult


def message(request: ReplayRequest, scratch: Path) -> dict[str, Any]:
    """What `assay_inside.worker` is sent for `request`; its tensors go to `<scratch>/<request id>.safetensors`."""
    return {
        "id": request.request_id,
        "prompt": request.prompt_token_ids,
        "forced": request.forced_token_ids,
        "count": tokens_to_generate(request),
        "path": str(_path(request, scratch)),
        "capture": _capture(request),
    }


def _capture(request: ReplayRequest) -> dict[str, Any] | None:
    """None when only logits are wanted: then no hook is put in place at all."""
    capture = request.capture
    if not (capture.kv or capture.modules or request.replacements or request.snapshot):
        return None
    return {
        "modules": capture.modules,
        "kv": capture.kv,
        "replacements": [item.model_dump(mode="json") for item in request.replacements],
        "snapshot": request.snapshot.model_dump(mode="json") if request.snapshot else None,
    }


def result(
    request: ReplayRequest, answer: Mapping[str, Any], scratch: Path, missing: Mapping[str, str]
) -> ReplayResult:
    """The answer for `request` as a result; `missing`: what it was not even asked for, and why."""
    return ReplayResult(
        request_id=request.request_id,
        token_ids=answer["token_ids"],
        argmax_ids=answer["argmax_ids"],
        seen_prompt_ids=answer.get("prompt") or [],
        tensors=str(_path(request, scratch)),
        names=answer.get("names") or ["logits"],
        shards=answer.get("shards") or [],
        missing={**missing, **(answer.get("missing") or {})},
        snapshots=answer.get("snapshots") or [],
        block_size=answer.get("block_size"),
        conduct=ReplayConduct.model_validate(answer["conduct"]) if answer.get("conduct") else None,
        route=answer["route"],
        shift_free=bool(answer["shift_free"]),
    )


def _path(request: ReplayRequest, scratch: Path) -> Path:
    return scratch / f"{request.request_id}.safetensors"
