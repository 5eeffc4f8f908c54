"""An engine against itself: prefix cache, batch and chunked prefill must not change logits (docs/consistency.md)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from accuracy_core.engines.protocol import ConditionalEngine, TargetEngine
from accuracy_core.errors import EngineArgumentError
from accuracy_core.outcome import Verdict
from accuracy_core.prompts.context import PluginContext
from accuracy_core.prompts.evidence import CONSISTENCY
from accuracy_core.prompts.plugin import PromptPlugin
from accuracy_core.prompts.plugins.consistency_summary import findings, summary
from accuracy_core.schemas import ConsistencyCheck, ConsistencyKind, ConsistencyResult, EngineSpec, Platform

#: vLLM's default on the CPU is 128 tokens, longer than most prompts: nothing would ever be taken from the cache
_CPU_BLOCK = 32


class EngineConsistencyPlugin(PromptPlugin):
    """The same requests in several ways of serving, in one engine of its own, each held against the neutral way.

    The engine is opened with a prefix cache, which the other analyses must not have. Prompts follow the references'
    tokens, as in logit validation, and out of the same golden cache.

    Args:
        prefill_chunk: tokens per piece of a chunked prefill; pieces should end inside a cache block.
        max_prompts: prompts that take part, the first ones.
    """

    name: ClassVar[str] = CONSISTENCY
    needs_shared_llm = False

    def __init__(self, prefill_chunk: int = 24, max_prompts: int = 8) -> None:
        self.prefill_chunk = prefill_chunk
        self.max_prompts = max_prompts

    def run(self, ctx: PluginContext) -> dict[str, Any]:
        """`passed`, `status` (PluginStatus), `consistency` (ConsistencyResult) and `findings`.

        What an engine cannot do, or did not do though it was asked, is not measured, with the reason. Raises
        EngineDiedError when the engine goes.
        """
        from accuracy_core.consistency.limits import ConsistencyLimits
        from accuracy_core.consistency.ways import serving_ways
        from accuracy_core.prompts.plugins.consistency_passes import check_engine
        from accuracy_core.prompts.plugins.consistency_subjects import choose_subjects

        limits, ways = ConsistencyLimits.of(ctx.tolerances), serving_ways(self.prefill_chunk)
        if _never(ctx.server_config):
            return _results(self._result(ctx, _lacking(ctx.server_config.engine)))
        longest = max(_block_size(ctx.server_config), self.prefill_chunk)
        subjects = choose_subjects(ctx, longer_than=longest, most=self.max_prompts)
        with _opened(ctx) as engine:
            if not isinstance(engine, ConditionalEngine):
                return _results(self._result(ctx, _lacking(engine.name)))
            checks = check_engine(
                engine, subjects.chosen, ways, ctx.dtype, limits,
                lambda done, count: ctx.progress("consistency", done, count), ctx.output_length,
            )  # fmt: skip
        checks = [one.model_copy(update={"left_out": {**subjects.left_out, **one.left_out}}) for one in checks]
        return _results(self._result(ctx, checks, subjects.added))

    def save(self, ctx: PluginContext, results: dict[str, Any]) -> None:
        """`prompt_analysis/engine_consistency.json`."""
        ctx.output_dir.write(ctx.output_dir.consistency_json, results["consistency"])

    def _result(
        self, ctx: PluginContext, checks: list[ConsistencyCheck], added: list[str] | None = None
    ) -> ConsistencyResult:
        return ConsistencyResult(
            target=ctx.server_config.engine,
            dtype=ctx.dtype,
            output_length=ctx.output_length,
            prefill_chunk=self.prefill_chunk,
            added=added or [],
            checks=checks,
        )


def _results(result: ConsistencyResult) -> dict[str, Any]:
    return {
        "passed": None if result.verdict is None else result.verdict is Verdict.PASS,
        "status": summary(result),
        "consistency": result,
        "findings": findings(result),
    }


def _never(spec: EngineSpec) -> bool:
    """Whether it is known, before anything is loaded, that this kind of engine cannot be told how to serve."""
    from accuracy_core.engines.registry import ENGINES

    kind = ENGINES.get(spec.engine)
    return kind is not None and not hasattr(kind.load(), "replay_under")


def _lacking(engine: str) -> list[ConsistencyCheck]:
    reason = f"engine {engine} runs one request at a time and cannot be told to serve otherwise"
    return [ConsistencyCheck(kind=kind, reason=reason, lacking=True) for kind in ConsistencyKind]


@contextlib.contextmanager
def _opened(ctx: PluginContext) -> Iterator[TargetEngine]:
    """An engine of our own with a prefix cache; one without where the engine refuses that."""
    from accuracy_core.prompts.engine_session import free_log, shared_engine

    log = ctx.output_dir.engine_log
    log_path = free_log(log) if isinstance(log, Path) else None
    with contextlib.ExitStack() as stack:

        def enter(spec: EngineSpec) -> TargetEngine:
            return stack.enter_context(shared_engine(spec, None, ctx.engine_factory, ctx.lease, log_path))

        try:
            engine = enter(with_prefix_cache(ctx.server_config))
        except EngineArgumentError:
            engine = enter(ctx.server_config)
        yield engine


def with_prefix_cache(spec: EngineSpec) -> EngineSpec:
    """`spec` with prefix caching, in short blocks on the CPU, where it does not say otherwise itself."""
    wanted: dict[str, Any] = {"enable_prefix_caching": True}
    if spec.platform is Platform.CPU:
        wanted["block_size"] = _CPU_BLOCK
    return spec.model_copy(update={"engine_args": {**wanted, **spec.engine_args}})


def _block_size(spec: EngineSpec) -> int:
    """Tokens per block of the prefix cache; where the platform chooses it, as many as are usual at most."""
    given = spec.engine_args.get("block_size")
    return given if isinstance(given, int) else _CPU_BLOCK
