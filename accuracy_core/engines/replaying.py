"""What every engine does around a single replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from accuracy_core.engines.protocol import Progress
from accuracy_core.schemas import ReplayRequest, ReplayResult


def replay_each(
    requests: Sequence[ReplayRequest], one: Callable[[ReplayRequest], ReplayResult], on_progress: Progress | None
) -> list[ReplayResult]:
    """`one(request)` for each, in order. A request for captures that logits-only engines lack gets an error instead."""
    results = []
    for done, request in enumerate(requests, start=1):
        results.append(_refused(request) or one(request))
        if on_progress is not None:
            on_progress(done, len(requests))
    return results


def _refused(request: ReplayRequest) -> ReplayResult | None:
    missing = [name for name, asked in (("kv", request.capture.kv), ("modules", request.capture.modules)) if asked]
    if not missing:
        return None
    return ReplayResult(
        request_id=request.request_id,
        token_ids=[],
        error=f"not measured: this engine does not capture {missing}",
    )
