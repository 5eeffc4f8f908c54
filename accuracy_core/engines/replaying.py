"""What every engine does around a single replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from accuracy_core.engines.protocol import Capabilities, Progress
from accuracy_core.schemas import ReplayRequest, ReplayResult


def replay_each(
    requests: Sequence[ReplayRequest],
    one: Callable[[ReplayRequest], ReplayResult],
    on_progress: Progress | None,
    refused: Callable[[ReplayRequest], str],
) -> list[ReplayResult]:
    """`one(request)` for each, in order; a request for which `refused` gives a reason gets it as its error instead."""
    results = []
    for done, request in enumerate(requests, start=1):
        reason = refused(request)
        results.append(
            ReplayResult(request_id=request.request_id, token_ids=[], error=reason) if reason else one(request)
        )
        if on_progress is not None:
            on_progress(done, len(requests))
    return results


def refusal(request: ReplayRequest, capabilities: Capabilities, reasons: Mapping[str, str] | None = None) -> str:
    """Why this engine cannot do what `request` asks for besides logits; empty when it can."""
    asked = {
        "kv_cache": request.capture.kv,
        "hooks": bool(request.capture.modules or request.snapshot),
        "replacement": bool(request.replacements),
    }
    lacking = [name for name, wanted in asked.items() if wanted and not getattr(capabilities, name)]
    if not lacking:
        return ""
    why = "; ".join(f"{name}: {(reasons or {}).get(name, 'not supported')}" for name in lacking)
    return f"not measured: this engine lacks {why} (captures need eager execution: enforce_eager)"
