"""What every engine does around a single replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from accuracy_core.capture.taps import tap_tensor_name
from accuracy_core.engines.protocol import Capabilities, Progress
from accuracy_core.schemas import ReplayConditions, ReplayRequest, ReplayResult


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
        results += failed([request], reason) if reason else [one(request)]
        if on_progress is not None:
            on_progress(done, len(requests))
    return results


def failed(requests: Sequence[ReplayRequest], error: str) -> list[ReplayResult]:
    """One result per request, all of them with `error`."""
    return [ReplayResult(request_id=request.request_id, token_ids=[], error=error) for request in requests]


def refusal(request: ReplayRequest, capabilities: Capabilities, reasons: Mapping[str, str] | None = None) -> str:
    """Why this engine cannot do what `request` asks for besides logits; empty when it can, or can do a part of it.

    A replacement that does not take place would change what is measured, so it is never left out (see `possible`).
    """
    lacking = _lacking(request, capabilities, reasons)
    captures = _captures(request)
    if "replacement" not in lacking and not (captures and set(captures) <= set(lacking)):
        return ""
    why = "; ".join(f"{name}: {reason}" for name, reason in lacking.items())
    return f"not measured: this engine lacks {why}"


def conditions_refusal(
    conditions: ReplayConditions, capabilities: Capabilities, reasons: Mapping[str, str] | None = None
) -> str:
    """Why this engine cannot be run under `conditions`; empty when it can. To empty the cache nothing is needed: where
    none is kept, none is left."""
    wanted = {
        "batching": conditions.together,
        "chunked_prefill": conditions.prefill_chunk is not None,
        "prefix_caching": conditions.read_prefixes,
    }
    lacking = [name for name, asked in wanted.items() if asked and not getattr(capabilities, name)]
    why = "; ".join(f"{name}: {(reasons or {}).get(name, 'not supported')}" for name in lacking)
    return f"not measured: this engine lacks {why}" if why else ""


def possible(
    request: ReplayRequest, capabilities: Capabilities, reasons: Mapping[str, str] | None = None
) -> tuple[ReplayRequest, dict[str, str]]:
    """`request` without the captures that this engine cannot give, and `ReplayResult.missing` for those."""
    lacking = _lacking(request, capabilities, reasons)
    capture, missing = request.capture, {}
    if "kv_cache" in lacking:
        capture, missing["kv"] = capture.model_copy(update={"kv": False}), lacking["kv_cache"]
    if "hooks" in lacking:
        missing |= {tap_tensor_name(tap): lacking["hooks"] for tap in capture.modules}
        capture = capture.model_copy(update={"modules": []})
        request = request.model_copy(update={"snapshot": None})
    return request.model_copy(update={"capture": capture}) if lacking else request, missing


def _captures(request: ReplayRequest) -> list[str]:
    """Capabilities that the request's captures need."""
    hooks = bool(request.capture.modules or request.snapshot)
    return [name for name, wanted in (("kv_cache", request.capture.kv), ("hooks", hooks)) if wanted]


def _lacking(request: ReplayRequest, capabilities: Capabilities, reasons: Mapping[str, str] | None) -> dict[str, str]:
    """Capability that is asked for and not there -> why."""
    asked = _captures(request) + (["replacement"] if request.replacements else [])
    return {name: (reasons or {}).get(name, "not supported") for name in asked if not getattr(capabilities, name)}
