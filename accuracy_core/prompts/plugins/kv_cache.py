"""Three-way comparison of the KV cache: every prompt, every position, prefill and decode."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from accuracy_core.errors import AssayError, ConfigurationError, InfrastructureError, NotMeasuredError
from accuracy_core.outcome import Outcome, Verdict, worst
from accuracy_core.prompts.context import PluginContext
from accuracy_core.prompts.plugin import PromptPlugin
from accuracy_core.schemas import Culprit, Finding, GuardHit, KvResult, PluginStatus, Severity

if TYPE_CHECKING:
    from accuracy_core.capture.names import TapPlan
    from accuracy_core.prompts.plugins.kv_references import KvReferences


class KvCachePlugin(PromptPlugin):
    """K and V of the target against those of the FP32 reference and of the reference in the target's dtype.

    References' caches come from the golden pass, before the engine is opened; one prompt at a time is held in memory.

    Args:
        save_caches: keep the raw K and V of all sides in `kv_caches.safetensors`.
        goldens_dir: golden cache for the references' K and V; default that of the goldens.
    """

    name: ClassVar[str] = "kv_cache"

    def __init__(self, save_caches: bool = True, goldens_dir: str | Path | None = None) -> None:
        self.save_caches = save_caches
        self.goldens_dir = goldens_dir
        self._references: KvReferences | None = None

    def pre_llm(self, ctx: PluginContext) -> None:
        """K and V of the references.

        Raises ConfigurationError, with the figures, when captures would fill the disk, and NotMeasuredError when the
        engine is known to give no KV cache.
        """
        from accuracy_core.capture.kv.limits import KvLimits
        from accuracy_core.goldens.location import cache_directory
        from accuracy_core.prompts.plugins.kv_references import obtain_references

        if ctx.engine is not None:
            check_engine(ctx)
        folder = cache_directory(self.goldens_dir or ctx.goldens_dir)
        self._check_room(ctx, folder)
        self._references = obtain_references(ctx, folder, KvLimits.of(ctx.tolerances))

    def run(self, ctx: PluginContext) -> dict[str, Any]:
        """`passed`, `status` (PluginStatus), `kv_results` (a KvResult each), `findings`, and `culprit` where the cache
        itself is at fault.

        Prompts that cannot be compared are recorded as errors. Raises NotMeasuredError when the engine gives no KV
        cache, EngineDiedError when it goes.
        """
        from accuracy_core.prompts.plugins.kv_target import plan_given

        check_engine(ctx)
        if self._references is None:
            self.pre_llm(ctx)
        assert self._references is not None
        plan = plan_given(ctx)
        results, errors = [], dict(self._references.errors)
        for position in range(len(ctx.prompts)):
            if position not in errors:
                try:
                    results.append(self._prompt(ctx, self._references, position, plan))
                except (ConfigurationError, InfrastructureError):
                    raise
                except AssayError as error:
                    errors[position] = error.message
            if position in errors:
                results.append(_unmeasured(ctx, position, errors[position]))
            ctx.progress("kv cache", position + 1, len(ctx.prompts))
        status = summary(results)
        return {
            "passed": None if status.verdict is None else status.verdict is Verdict.PASS and not status.errors,
            "status": status,
            "kv_results": results,
            "findings": findings(results),
            "culprit": culprit(results),
        }

    def save(self, ctx: PluginContext, results: dict[str, Any]) -> None:
        """`prompt_<i>/kv_cache_result.json` and `prompt_<i>/kv_analysis/kv_report.html` per prompt."""
        from accuracy_core.prompts.kv_page import save_page

        for result in results["kv_results"]:
            ctx.output_dir.write(ctx.output_dir.prompt_result(result.index, self.name), result)
            if result.heads:
                save_page(ctx.output_dir, result)

    def _check_room(self, ctx: PluginContext, folder: Path) -> None:
        from accuracy_core.capture.kv.disk import check_room
        from accuracy_core.capture.kv.model_facts import values_per_position
        from accuracy_core.engines.checkpoint import effective_config, resolve_checkpoint
        from accuracy_core.prompts.plugins.kv_references import positions_of

        config = effective_config(ctx.server_config, resolve_checkpoint(ctx.server_config))
        width = values_per_position(config)
        if width is None:
            return
        values = width * sum(positions_of(ctx, position) for position in range(len(ctx.prompts)))
        narrow = 4 if ctx.dtype == "float32" else 2
        needs = [("K and V of the references", folder, values * (4 + narrow))]
        if self.save_caches and isinstance(ctx.output_dir.root, Path):
            needs.append(("raw KV caches of all sides", ctx.output_dir.root, values * (4 + 2 * narrow)))
        check_room(needs, fix="analyse fewer or shorter prompts, free space, or use KvCachePlugin(save_caches=False)")

    def _prompt(self, ctx: PluginContext, references: KvReferences, position: int, plan: TapPlan) -> KvResult:
        from accuracy_core.capture.kv import compare_kv_caches
        from accuracy_core.capture.kv.files import layers_of, target_layers
        from accuracy_core.capture.kv.model_facts import routed_from
        from accuracy_core.engines.checkpoint import effective_config, resolve_checkpoint
        from accuracy_core.prompts.plugins.kv_artifacts import save_caches
        from accuracy_core.prompts.plugins.kv_target import files_of, given_by, remove_files, replay_kv

        prompt = ctx.prepared[position]
        config = effective_config(ctx.server_config, resolve_checkpoint(ctx.server_config))
        with references.reading(position) as (layers, read):
            answer = replay_kv(ctx, position, references.tokens[position], plan)
            try:
                files = files_of(answer)
                there = target_layers(files)
                both = [layer for layer in layers if layer in there]
                absent = {
                    name: reason
                    for name, reason in answer.missing.items()
                    if name.startswith("kv.") and name not in answer.names
                }
                explained = len({name.split(".")[1] for name in absent})
                result = compare_kv_caches(
                    layers_of(files, both, read, given_by(plan, answer.missing)),
                    index=prompt.index,
                    prompt_length=len(prompt.token_ids),
                    dtype=ctx.dtype,
                    cache_dtype=references.cache_dtype,
                    block_size=answer.block_size,
                    envelope=references.envelope,
                    routed_from=routed_from(config),
                    expected_layers=max(len(layers), len(there)) - explained,
                    tolerances=ctx.tolerances,
                )
                if self.save_caches and not any(hit.guard == "kv_shape" for hit in result.guards):
                    save_caches(ctx.output_dir, prompt.index, files, both, read)
            finally:
                remove_files(answer)
        if absent and result.verdict is Verdict.PASS:  # layers that were not looked at are no pass
            result = result.model_copy(update={"verdict": None, "outcome": Outcome.NOT_MEASURED})
        kept = {name: reason for name, reason in answer.missing.items() if name.startswith("kv")}
        return result.model_copy(update={"missing": kept})


def check_engine(ctx: PluginContext) -> None:
    """Raise NotMeasuredError unless the engine gives its KV cache."""
    if ctx.engine is None:
        raise NotMeasuredError("the KV comparison needs an engine and goldens")
    if not ctx.engine.capabilities.kv_cache:
        raise NotMeasuredError(f"engine {ctx.engine.name} has no capability `kv_cache`: it does not give K and V")


def _unmeasured(ctx: PluginContext, position: int, text: str) -> KvResult:
    prompt = ctx.prepared[position]
    return KvResult(index=prompt.index, outcome=Outcome.NOT_MEASURED, prompt_length=len(prompt.token_ids), error=text)


def summary(results: Sequence[KvResult]) -> PluginStatus:
    """All prompts together: worst verdict, worst guard, largest aggregates (for BC and cosine the smallest)."""
    measured = [result for result in results if result.verdict is not None]
    hits = [hit for result in measured for hit in result.guards]
    aggregates: dict[str, float] = {}
    for result in measured:
        for name, value in result.aggregates.items():
            pick = min if name in ("agg_bc", "min_cosine") else max
            known = aggregates.get(name, value)
            aggregates[name] = pick(known, value) if known == known else value
    return PluginStatus(
        plugin=KvCachePlugin.name,
        outcome=Outcome.NUMERICS if measured else Outcome.NOT_MEASURED,
        verdict=worst([result.verdict for result in measured if result.verdict is not None]) if measured else None,
        worst=max(hits, key=_severity) if hits else None,
        aggregates=aggregates,
        per_prompt={str(result.index): result.verdict for result in results if result.error is None},
        errors={str(result.index): result.error for result in results if result.error is not None},
    )


def _severity(hit: GuardHit) -> tuple[bool, float]:
    ratio = hit.value / hit.limit if hit.limit > 0 else hit.value
    return hit.guard not in ("kv_l2_ratio", "kv_head_ratio"), ratio if ratio == ratio else 0.0


def findings(results: Sequence[KvResult]) -> list[Finding]:
    """What could not be compared, once per reason."""
    reasons: dict[str, list[str]] = {}
    for result in results:
        for name, reason in result.missing.items():
            reasons.setdefault(reason, []).append(f"prompt {result.index}: {name}")
    return [
        Finding(
            check="kv_cache",
            severity=Severity.INFO,
            evidence=f"{reason} ({places[0]}" + (f" and {len(places) - 1} more)" if len(places) > 1 else ")"),
            outcome=Outcome.NOT_MEASURED,
        )
        for reason, places in reasons.items()
    ]


def culprit(results: Sequence[KvResult]) -> Culprit | None:
    """The cache of the earliest layer that is itself at fault; None when caches hold what they were given."""
    faulty = [result for result in results if result.cache_fault and result.first_bad is not None]
    if not faulty:
        return None
    result = min(faulty, key=lambda item: (item.first_bad.layer if item.first_bad else 0, item.index))
    place = result.first_bad
    assert place is not None
    return Culprit(
        phase=result.phase,
        module=f"model.layers.{place.layer}.self_attn.attn",
        layer=place.layer,
        head=place.head,
        position=place.position,
        prompt=result.index,
        evidence=[f"KV cache, pattern {result.pattern.value.replace('_', ' ')}", *result.evidence],
        suspects=[f"the write of {place.which}s into the KV cache of layer {place.layer}"],
    )
