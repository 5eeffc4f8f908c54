"""Prompt analysis: prompts, goldens, one engine, plugins, one summary."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from accuracy_core.engines.protocol import TargetEngine
from accuracy_core.errors import AssayError, ConfigurationError
from accuracy_core.prompts.context import EngineFactory, Goldens, PluginContext, PromptProgress, no_progress
from accuracy_core.prompts.goldens import compute_goldens, reference_dtype
from accuracy_core.prompts.investigation import earlier_status, find_culprit, investigate
from accuracy_core.prompts.merge import merge_status, number_prompts, target_fingerprint
from accuracy_core.prompts.plugin import PromptPlugin
from accuracy_core.prompts.prepare import PromptsInput, prepare_prompts
from accuracy_core.prompts.prepared import PreparedPrompts
from accuracy_core.prompts.registry import make_plugins
from accuracy_core.prompts.result import PromptAnalysisResult
from accuracy_core.prompts.running import Work, run_alone, run_shared
from accuracy_core.prompts.text_report import prompt_report
from accuracy_core.prompts.tokens import load_tokenizer
from accuracy_core.schemas import (
    EngineSpec,
    Finding,
    RunDir,
    Severity,
    Tolerances,
    write_text,
)


def run_prompt_analysis(
    server_config: Mapping[str, Any] | EngineSpec,
    prompts: PromptsInput,
    plugin_steps: Sequence[str | PromptPlugin],
    output_dir: str | os.PathLike[str] | RunDir,
    output_length: int = 16,
    *,
    tokenizer: Any = None,
    max_prompts: int | None = None,
    tolerances: Tolerances | None = None,
    goldens: Goldens | None = None,
    goldens_dir: str | Path | None = None,
    engine: TargetEngine | None = None,
    engine_factory: EngineFactory | None = None,
    lease: Any = None,
    fresh: bool = False,
    triage: bool = True,
    modules: Sequence[str] = (),
    progress: PromptProgress = no_progress,
) -> PromptAnalysisResult:
    """Analyse prompts with plugins; results appear under `output_dir/prompt_analysis/`.

    Goldens are computed before the engine is opened, one load per dtype for all prompts, unless `goldens` are given.
    One engine serves all plugins that share it: `engine` if given (left open), else one that is opened under `lease`
    and closed again. A second call into the same directory merges; `fresh` replaces what is there.

    With `triage`, when logits fail, the worst failing prompts are also compared by KV cache and module tensors in the
    same engine, and the culprit is put to the proof by tensor replacement. `modules`: patterns for that comparison,
    all modules when empty.

    Raises ConfigurationError before any work for a wrong set-up (empty prompts, a prompt longer than max_model_len, an
    unknown plugin, a missing model). A prompt or plugin that fails later is recorded in the result, the others go on; a
    dead engine gives outcome *infrastructure* (`result.raise_if_broken()` turns it into an exception).
    """
    spec = EngineSpec.from_server_config(server_config)
    plugins = make_plugins(plugin_steps)
    if tokenizer is None:
        tokenizer = load_tokenizer(spec.model, spec.tokenizer)
    prepared = prepare_prompts(
        prompts,
        tokenizer,
        output_length=output_length,
        max_model_len=spec.max_model_len or context_length(spec),
        max_prompts=max_prompts,
    )
    run_dir = RunDir.at(output_dir).create()
    prepared = claim_directory(prepared, spec, run_dir, fresh=fresh)
    golden_error: AssayError | None = None
    if goldens is None and any(plugin.shares(spec) for plugin in plugins):
        try:
            goldens = compute_goldens(prepared, spec, output_length, tokenizer=tokenizer, goldens_dir=goldens_dir)
        except ConfigurationError:
            raise
        except AssayError as error:
            golden_error = error
    return run_plugins(
        prepared,
        plugins,
        spec,
        run_dir,
        output_length=output_length,
        goldens=goldens,
        golden_error=golden_error,
        engine=engine,
        engine_factory=engine_factory,
        lease=lease,
        tokenizer=tokenizer,
        tolerances=tolerances,
        triage=triage,
        modules=modules,
        goldens_dir=goldens_dir,
        progress=progress,
    )


def context_length(spec: EngineSpec) -> int | None:
    """`max_position_embeddings` of the checkpoint, when its config can be read without a download."""
    import json

    from accuracy_core.models import resolve_model

    try:
        folder = Path(resolve_model(spec.model, need_tokenizer=False))
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    value = config.get("max_position_embeddings")
    return int(value) if isinstance(value, int) else None


def claim_directory(
    prepared: PreparedPrompts, spec: EngineSpec, run_dir: RunDir, *, fresh: bool = False
) -> PreparedPrompts:
    """Number the prompts in `run_dir` and write `prompts.json`. Returns this call's prompts with their numbers.

    `fresh` removes an earlier prompt analysis first. Raises ConfigurationError when the directory holds another
    target's.
    """
    manifest_path = run_dir.prompt_analysis / "prompts.json"
    if fresh and run_dir.prompt_analysis.exists():
        if isinstance(run_dir.prompt_analysis, Path):
            shutil.rmtree(run_dir.prompt_analysis)
        else:
            run_dir.prompt_analysis.rmtree()
    old = run_dir.read(manifest_path, PreparedPrompts) if manifest_path.exists() else None
    mine, manifest = number_prompts(prepared, old, target_fingerprint(spec))
    run_dir.write(manifest_path, manifest)
    for prompt in mine.prompts:
        write_text(run_dir.prompt(prompt.index) / "prompt.txt", prompt.text)
    return mine


def run_plugins(
    prepared: PreparedPrompts,
    plugins: Sequence[PromptPlugin],
    spec: EngineSpec,
    run_dir: RunDir,
    *,
    output_length: int,
    goldens: Goldens | None = None,
    golden_error: AssayError | None = None,
    engine: TargetEngine | None = None,
    engine_factory: EngineFactory | None = None,
    lease: Any = None,
    tokenizer: Any = None,
    tolerances: Tolerances | None = None,
    triage: bool = True,
    modules: Sequence[str] = (),
    goldens_dir: str | Path | None = None,
    findings: Sequence[Finding] = (),
    progress: PromptProgress = no_progress,
) -> PromptAnalysisResult:
    """The part that needs the device: run `plugins` over prompts numbered by `claim_directory`, write the summary.

    `golden_error` says why there are no goldens; the plugins that need them are recorded as not measured. `triage` and
    `modules` as in `run_prompt_analysis`. `findings` are about the set-up and go into the summary as they are.
    """
    ctx = PluginContext(
        checkpoint=spec.model,
        prompts=tuple(tuple(prompt.token_ids) for prompt in prepared.prompts),
        prepared=tuple(prepared.prompts),
        server_config=spec,
        output_length=output_length,
        output_dir=run_dir,
        dtype=reference_dtype(spec),
        tokenizer=tokenizer,
        tolerances=tolerances,
        goldens_dir=goldens_dir,
        progress=progress,
        engine_factory=engine_factory,
        lease=lease,
    )
    work = Work()
    shared = [plugin for plugin in plugins if plugin.shares(spec)]
    own = [plugin for plugin in plugins if not plugin.shares(spec)]
    afterwards = partial(investigate, spec=spec, modules=modules) if triage else None
    if shared:
        run_shared(
            shared, replace(ctx, goldens=goldens), golden_error, work, spec, engine, engine_factory, lease, afterwards
        )
    for plugin in own:
        run_alone(plugin, ctx, work)
    return _finish(prepared, spec, run_dir, work, findings)


def _finish(
    prepared: PreparedPrompts, spec: EngineSpec, run_dir: RunDir, work: Work, given: Sequence[Finding]
) -> PromptAnalysisResult:
    found = work.found or find_culprit(run_dir, work, spec)
    manifest = run_dir.read(run_dir.prompt_analysis / "prompts.json", PreparedPrompts)
    path = run_dir.prompt_analysis_json
    status = merge_status(
        earlier_status(run_dir),
        work.status,
        manifest,
        culprit=found.culprit,
        phase=found.phase,
        findings=[*given, *_findings(prepared, work)],
        engine=work.engine,
        log_tail=work.log_tail,
        escalation=work.escalation,
    )
    run_dir.write(path, status)
    report = run_dir.prompt_analysis / "prompt_report.txt"
    write_text(report, prompt_report(status, manifest))
    return PromptAnalysisResult(
        prompts=prepared.prompts,
        plugin_results=work.status,
        verdict=status.verdict,
        report_path=str(report),
        status=status,
    )


def _findings(prepared: PreparedPrompts, work: Work) -> list[Finding]:
    reported = [item for results in work.results.values() for item in results.get("findings", [])]
    return [
        *(item for item in reported if isinstance(item, Finding)),
        *(
            Finding(
                check="prompt_length",
                severity=Severity.WARNING,
                evidence=f"not analysed, too long: {text}",
                fix="raise max_model_len or lower output_length",
            )
            for text in prepared.skipped
        ),
    ]
