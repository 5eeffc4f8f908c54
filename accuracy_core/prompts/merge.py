"""Merging calls into one output directory: plugins add up, prompts keep their numbers."""

from __future__ import annotations

from collections.abc import Mapping

from accuracy_core.errors import ConfigurationError
from accuracy_core.outcome import Outcome, Verdict, worst
from accuracy_core.prompts.prepared import PreparedPrompt, PreparedPrompts
from accuracy_core.schemas import (
    Culprit,
    EngineSpec,
    Escalation,
    Finding,
    Phase,
    PluginStatus,
    PromptAnalysisStatus,
    fingerprint,
)

#: fields of EngineSpec that make another target; lengths, batch and threads may differ between two calls
_TARGET_FIELDS = (
    "engine", "platform", "model", "dtype", "tensor_parallel_size", "kv_cache_dtype", "quantization", "hf_overrides",
    "fault",
)  # fmt: skip


def target_fingerprint(spec: EngineSpec) -> str:
    """sha256 over what makes the target this target."""
    return fingerprint(spec.model_dump(mode="json", include=set(_TARGET_FIELDS)))


def number_prompts(
    new: PreparedPrompts, old: PreparedPrompts | None, target: str
) -> tuple[PreparedPrompts, PreparedPrompts]:
    """(prompts of this call with their numbers, manifest of the whole directory).

    A prompt that the directory knows (same token ids) keeps its number, others get the next free ones. Raises
    ConfigurationError when the directory holds results of another target: they must not be mixed.
    """
    if old is not None and old.target and old.target != target:
        raise ConfigurationError(
            "the output directory holds prompt analysis of another target (model, dtype, engine or fault differ)",
            fix="choose another output directory, or pass fresh=True to replace what is there",
        )
    known = {tuple(prompt.token_ids): prompt for prompt in (old.prompts if old is not None else [])}
    following = max((prompt.index for prompt in known.values()), default=-1) + 1
    mine: list[PreparedPrompt] = []
    for prompt in new.prompts:
        before = known.get(tuple(prompt.token_ids))
        if before is None:
            before = prompt.model_copy(update={"index": following})
            following += 1
            known[tuple(prompt.token_ids)] = before
        if all(before.index != taken.index for taken in mine):
            mine.append(before)
    everything = sorted(known.values(), key=lambda prompt: prompt.index)
    notes = {new.note: None, **({old.note: None} if old is not None else {})}
    manifest = PreparedPrompts(
        prompts=everything,
        curated=new.curated and (old is None or old.curated),
        note="; ".join(note for note in notes if note),
        skipped=list(dict.fromkeys([*(old.skipped if old is not None else []), *new.skipped])),
        target=target,
    )
    return new.model_copy(update={"prompts": mine, "target": target}), manifest


def merge_plugin(old: PluginStatus | None, new: PluginStatus) -> PluginStatus:
    """`new` with the prompts of `old` that it did not look at. Its aggregates are its own: they cannot be added up."""
    if old is None:
        return new
    looked_at = set(new.per_prompt) | set(new.errors)
    kept = {key: value for key, value in old.per_prompt.items() if key not in looked_at}
    errors = {key: value for key, value in old.errors.items() if key not in looked_at and key in old.per_prompt}
    verdicts = [value for value in (*kept.values(), new.verdict) if value is not None]
    return new.model_copy(
        update={
            "per_prompt": {**kept, **new.per_prompt},
            "errors": {**errors, **new.errors},
            "verdict": worst(verdicts) if verdicts else None,
        }
    )


def merge_plugins(old: PromptAnalysisStatus | None, new: Mapping[str, PluginStatus]) -> dict[str, PluginStatus]:
    """Plugins of the directory after this call."""
    plugins = dict(old.plugins) if old is not None else {}
    for name, status in new.items():
        plugins[name] = merge_plugin(plugins.get(name), status)
    return plugins


def merge_status(
    old: PromptAnalysisStatus | None,
    new: Mapping[str, PluginStatus],
    manifest: PreparedPrompts,
    *,
    culprit: Culprit | None,
    phase: Phase,
    findings: list[Finding],
    engine: dict[str, str],
    log_tail: str = "",
    escalation: Escalation | None = None,
) -> PromptAnalysisStatus:
    """`analysis.json` of the directory after this call."""
    plugins = merge_plugins(old, new)
    outcome, verdict = overall(plugins)
    seen = {(finding.check, finding.evidence) for finding in findings}
    earlier = [f for f in (old.findings if old is not None else []) if (f.check, f.evidence) not in seen]
    if verdict is None or verdict is Verdict.PASS:
        culprit, phase = None, Phase.NONE
    elif culprit is None and old is not None:
        culprit, phase = old.culprit, old.phase
    return PromptAnalysisStatus(
        outcome=outcome,
        verdict=verdict,
        phase=phase,
        n_prompts=len(manifest.prompts),
        curated=manifest.curated,
        plugins=plugins,
        culprit=culprit,
        findings=[*earlier, *findings],
        engine={**(old.engine if old is not None else {}), **engine},
        log_tail=log_tail,
        escalation=escalation or (old.escalation if old is not None else None),
    )


def overall(plugins: Mapping[str, PluginStatus]) -> tuple[Outcome, Verdict | None]:
    """Outcome and verdict over plugins. A proven failure stands; otherwise a breakdown comes before a pass."""
    verdicts = [plugin.verdict for plugin in plugins.values() if plugin.verdict is not None]
    verdict = worst(verdicts) if verdicts else None
    if verdict is Verdict.FAIL:
        return Outcome.NUMERICS, verdict
    outcomes = {plugin.outcome for plugin in plugins.values()}
    for outcome in (Outcome.CONFIGURATION, Outcome.INFRASTRUCTURE):
        if outcome in outcomes:
            return outcome, verdict
    return (Outcome.NUMERICS if verdicts else Outcome.NOT_MEASURED), verdict
