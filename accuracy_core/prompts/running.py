"""Running plugins so that one that fails costs only itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from accuracy_core.engines.protocol import TargetEngine
from accuracy_core.errors import AssayError, ConfigurationError, InfrastructureError, NotMeasuredError
from accuracy_core.outcome import Outcome
from accuracy_core.prompts.context import EngineFactory, PluginContext
from accuracy_core.prompts.engine_session import make_generate_fn, shared_engine
from accuracy_core.prompts.plugin import PromptPlugin
from accuracy_core.prompts.triage import Triage
from accuracy_core.schemas import EngineSpec, Escalation, PluginStatus


@dataclass
class Work:
    """What accumulates while plugins run."""

    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    status: dict[str, PluginStatus] = field(default_factory=dict)
    engine: dict[str, str] = field(default_factory=dict)
    log_tail: str = ""
    escalation: Escalation | None = None
    found: Triage | None = None


def run_shared(
    plugins: Sequence[PromptPlugin],
    ctx: PluginContext,
    golden_error: AssayError | None,
    work: Work,
    spec: EngineSpec,
    engine: TargetEngine | None,
    factory: EngineFactory | None,
    lease: Any,
    afterwards: Callable[[PluginContext, Work], None] | None = None,
) -> None:
    """The plugins that share one engine: `pre_llm` of each, then the engine, then one after the other.

    `afterwards` is called with the same engine once all of them are done. Raises ConfigurationError when the engine
    refuses its arguments: no plugin can have worked.
    """
    if ctx.goldens is None:
        error = golden_error or NotMeasuredError("there are no goldens to compare with")
        for plugin in plugins:
            _record(plugin, work, error)
        return
    ready = [plugin for plugin in plugins if _attempt(plugin, work, partial(plugin.pre_llm, ctx))]
    if not ready:
        return
    log = ctx.output_dir.engine_log
    log_path = log if isinstance(log, Path) else None  # an engine writes its log to a local disk only
    try:
        with shared_engine(spec, engine, factory, lease, log_path) as opened:
            work.engine.update(_describe(opened))
            shared = replace(ctx, engine=opened, generate_fn=make_generate_fn(opened, ctx.output_length))
            for plugin in ready:
                _run_one(plugin, shared, work)
            if afterwards is not None:
                afterwards(shared, work)
    except ConfigurationError:
        raise
    except (AssayError, OSError) as error:
        # opening or closing failed: plugins that finished keep what they found
        for plugin in ready:
            if plugin.name not in work.status:
                _record(plugin, work, error)


def run_alone(plugin: PromptPlugin, ctx: PluginContext, work: Work) -> None:
    """A plugin that manages its own engine."""
    if _attempt(plugin, work, partial(plugin.pre_llm, ctx)):
        _run_one(plugin, ctx, work)


def _run_one(plugin: PromptPlugin, ctx: PluginContext, work: Work) -> None:
    def analyse() -> None:
        results = plugin.run(ctx)
        plugin.save(ctx, results)
        work.results[plugin.name] = results
        work.status[plugin.name] = plugin.status(results)

    _attempt(plugin, work, analyse)


def _attempt(plugin: PromptPlugin, work: Work, step: Callable[[], None]) -> bool:
    """Run one step. A failure is recorded for this plugin alone; True when it went through."""
    try:
        step()
    except Exception as error:
        _record(plugin, work, error)
        return False
    return True


def _record(plugin: PromptPlugin, work: Work, error: Exception) -> None:
    outcome = error.outcome if isinstance(error, AssayError) else Outcome.NOT_MEASURED
    if isinstance(error, OSError) and not isinstance(error, AssayError):
        outcome = Outcome.INFRASTRUCTURE
    text = error.message if isinstance(error, AssayError) else f"{type(error).__name__}: {error}"
    if isinstance(error, AssayError) and error.fix:
        text += f" ({error.fix})"
    if isinstance(error, InfrastructureError):
        work.log_tail = error.log_tail or work.log_tail
    work.status[plugin.name] = PluginStatus(plugin=plugin.name, outcome=outcome, errors={"plugin": text})


def _describe(engine: TargetEngine) -> dict[str, str]:
    capabilities = engine.capabilities
    names = ("forced_decode", "raw_logits", "kv_cache", "hooks", "replacement", "prompt_logprobs")
    able = [name for name in names if getattr(capabilities, name)]
    return {"engine": engine.name, "capabilities": ", ".join(able), **capabilities.versions}
