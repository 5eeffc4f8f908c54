"""The preflight of somebody else's running server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from accuracy_core.errors import ConfigurationError
from accuracy_core.models import resolve_model
from accuracy_core.prompts.preflight.facts import PreflightFacts
from accuracy_core.prompts.preflight.gather import checkpoint_facts
from accuracy_core.prompts.preflight.registry import remark, run_preflight, unmeasured
from accuracy_core.prompts.preflight.server_probe import ServerProbe, probe_server
from accuracy_core.schemas import EngineSpec, Finding


def examine_server(
    base_url: str,
    *,
    checkpoint: str | None = None,
    served_model: str | None = None,
    api_key: str | None = None,
    timeout_s: float = 30,
) -> list[Finding]:
    """All checks that the server and, where it is at hand, the checkpoint allow.

    `checkpoint` None takes the folder that the server says it loaded, if it is on this host. Raises
    InfrastructureError and ConfigurationError as `probe_server`, ConfigurationError for a `checkpoint` that is none.
    """
    folder = None if checkpoint is None else Path(resolve_model(checkpoint, need_tokenizer=False))
    probe = probe_server(base_url, model=served_model, api_key=api_key, timeout_s=timeout_s)
    if folder is None:
        folder = _local(probe.root)
    facts = replace(_facts(probe, folder), server=probe.facts, seen=probe.seen)
    report = run_preflight(facts, None if folder is not None else ["requests", "server"])
    return [*_about(probe, folder), *report.findings]


def _facts(probe: ServerProbe, folder: Path | None) -> PreflightFacts:
    spec = EngineSpec(model=str(folder or probe.root or probe.facts.model), dtype="auto")
    return PreflightFacts(spec=spec) if folder is None else checkpoint_facts(spec, folder)


def _local(root: str | None) -> Path | None:
    """The server's checkpoint, when it is a folder on this host."""
    if not root or not Path(root).is_dir():
        return None
    try:
        return Path(resolve_model(root, need_tokenizer=False))
    except ConfigurationError:
        return None


def _about(probe: ServerProbe, folder: Path | None) -> list[Finding]:
    server = probe.facts
    found = [
        remark("server", f"{server.base_url}: {server.kind or 'not vLLM, as far as it says'}, model {server.model!r}"),
    ]
    if folder is None:
        found.append(
            unmeasured("checkpoint", f"{probe.root or server.model!r} is not on this host: name it with --model")
        )
    found += [unmeasured("server", f"{what} was refused: {reason}") for what, reason in server.refused.items()]
    return found
