"""Stages 3 and 4: references of the chosen prompts (no device held), then their replay on the engine."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from accuracy_core.engines.cores import CoreLease
from accuracy_core.engines.protocol import TargetEngine
from accuracy_core.engines.registry import open_engine
from accuracy_core.errors import ConfigurationError
from accuracy_core.pipeline import progress
from accuracy_core.pipeline.device import wait_for_cores
from accuracy_core.pipeline.evaluation import local_path
from accuracy_core.pipeline.limits import limits_for
from accuracy_core.pipeline.mirror import synchronised
from accuracy_core.pipeline.preflight_findings import check_loaded
from accuracy_core.pipeline.run import Run
from accuracy_core.pipeline.stages import recorded
from accuracy_core.prompts import claim_directory, compute_goldens, make_plugins, prepare_prompts, run_plugins
from accuracy_core.prompts.context import Goldens
from accuracy_core.prompts.curated import curated_prompts
from accuracy_core.prompts.engine_session import free_log
from accuracy_core.prompts.investigation import plugin_options
from accuracy_core.prompts.orchestrator import context_length
from accuracy_core.prompts.prepared import PreparedPrompts
from accuracy_core.prompts.tokens import load_tokenizer
from accuracy_core.schemas import DeviatedPrompts, EngineSpec, PromptAnalysisStatus

if TYPE_CHECKING:
    from accuracy_core.goldens.mapping import ReferenceGoldens
    from accuracy_core.goldens.order import GoldenOrder

GOLDENS = "goldens"
STAGE = "prompt_analysis"


@dataclass(frozen=True)
class PreparedAnalysis:
    """Prompts with their numbers in the run directory, and their references."""

    prompts: PreparedPrompts
    goldens: Goldens
    tokenizer: Any


def prepare_analysis(
    run: Run, obtain: Callable[[GoldenOrder], ReferenceGoldens] | None = None, *, recording: bool = True
) -> PreparedAnalysis:
    """Choose the prompts and get their references, from the cache or computed; by `obtain` if a scheduler does that.

    `recording` False leaves the record of the stage as it is: for a process that only needs again what another one of
    the same run has prepared.

    Raises ConfigurationError for prompts that cannot be replayed, ReferenceError_ for unusable references.
    """
    parameters = run.parameters.prompt_analysis
    inputs = {"target": run.target_identity, **parameters.model_dump(mode="json")}
    with (
        synchronised(run.parameters.output_dir),
        recorded(run.run_dir, GOLDENS, inputs) if recording else contextlib.nullcontext(),
    ):
        prepared, tokenizer = choose_prompts(run)
        prepared = claim_directory(prepared, run.engine, run.run_dir, fresh=True)
        progress.report(GOLDENS, 0, len(prepared.prompts), f"{len(prepared.prompts)} prompts")
        goldens = compute_goldens(
            prepared,
            run.engine,
            parameters.output_length,
            tokenizer=tokenizer,
            goldens_dir=run.parameters.goldens_dir,
            obtain=obtain,
        )
    return PreparedAnalysis(prepared, goldens, tokenizer)


def choose_prompts(run: Run, tokenizer: Any = None) -> tuple[PreparedPrompts, Any]:
    """Prompts that this run analyses, as token ids, and their tokenizer (loaded unless given); writes nothing.

    Raises ConfigurationError for prompts that cannot be replayed, or when there are none.
    """
    if tokenizer is None:
        tokenizer = load_tokenizer(run.model_path, run.parameters.engine.tokenizer)
    longest = run.engine.max_model_len or context_length(run.engine)
    prepared = prepare_prompts(
        _chosen(run, tokenizer, longest),
        tokenizer,
        output_length=run.parameters.prompt_analysis.output_length,
        max_model_len=longest,
    )
    return prepared, tokenizer


def analyse_prompts(run: Run, prepared: PreparedAnalysis) -> PromptAnalysisStatus:
    """Replay and judge. Raises InfrastructureError, with the engine's last lines, when the engine dies."""
    parameters = run.parameters.prompt_analysis
    limits = limits_for(parameters, run.parameters.engine, run.model_fingerprint)
    inputs = {
        "target": run.target_identity,
        "prompts": prepared.prompts.token_ids(),
        "parameters": parameters.model_dump(mode="json"),
    }
    with (
        synchronised(run.parameters.output_dir),
        recorded(run.run_dir, STAGE, inputs, ["prompt_analysis"]),
        _device(run) as lease,
    ):
        result = run_plugins(
            prepared.prompts,
            make_plugins(parameters.plugins, plugin_options(parameters.modules)),
            run.engine,
            run.run_dir,
            output_length=parameters.output_length,
            goldens=prepared.goldens,
            engine_factory=lambda spec: _open(run, spec, lease),
            tokenizer=prepared.tokenizer,
            tolerances=limits.tolerances if limits is not None else None,
            findings=limits.findings if limits is not None else (),
            triage=parameters.triage,
            modules=parameters.modules,
            goldens_dir=run.parameters.goldens_dir,
            progress=lambda plugin, done, total: progress.report(STAGE, done, total, plugin),
        )
        result.raise_if_broken()
    return result.status


def _chosen(run: Run, tokenizer: Any, longest: int | None) -> list[str] | PreparedPrompts | DeviatedPrompts:
    parameters = run.parameters.prompt_analysis
    if parameters.curated:
        chosen = curated_prompts(tokenizer, (longest or sys.maxsize) - parameters.output_length)
        return PreparedPrompts(prompts=chosen, curated=True)
    if parameters.prompts is not None:
        return list(parameters.prompts)
    path = run.run_dir.deviated_prompts
    if not path.exists():
        raise ConfigurationError(
            f"{path} does not exist: there are no deviated prompts to analyse",
            fix="run the task analysis first, or give prompts with --prompt",
        )
    from accuracy_core.evals.selection import select_prompts

    document = run.run_dir.read(path, DeviatedPrompts)
    picked = select_prompts(document.prompts, parameters.max_prompts, model_errors=document.model_errors)
    return document.model_copy(update={"prompts": picked, "model_errors": []})


def _device(run: Run) -> CoreLease:
    note = f"prompt analysis of {run.model_name}"
    return wait_for_cores(run.engine, STAGE, timeout_s=run.parameters.device_timeout_s, note=note)


def _open(run: Run, spec: EngineSpec, lease: CoreLease) -> TargetEngine:
    progress.report(STAGE, message="loading the engine")
    log_path = free_log(local_path(run.run_dir.engine_log))
    engine = open_engine(spec, lease=lease, log_path=log_path, startup_timeout_s=run.parameters.startup_timeout_s)
    try:
        check_loaded(run, log_path)
    except BaseException:
        engine.close()
        raise
    return engine
