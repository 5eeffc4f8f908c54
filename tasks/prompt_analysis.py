"""Tasks of the prompt analysis: references without the device, then the replay on it."""

from __future__ import annotations

from collections.abc import Callable

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from accuracy_core.pipeline import prompt_stage
from accuracy_core.pipeline.earlier import earlier_analysis
from accuracy_core.pipeline.run import Run
from accuracy_core.pipeline.stage_keys import prompt_analysis_key
from accuracy_core.schemas import PromptAnalysisStatus
from tasks.goldens import obtain_goldens
from tasks.progress import progress_artifact
from tasks.showing import showing
from tasks.stage_cache import obtain_stage


@task(name="goldens", cache_policy=NO_CACHE, persist_result=False)
def goldens_task(run: Run) -> prompt_stage.PreparedAnalysis:
    """Prompts to analyse and their FP32 and BF16 references, from the cache or computed; no device is held."""
    with progress_artifact(prompt_stage.GOLDENS):
        return prompt_stage.prepare_analysis(run, obtain_goldens)


@task(name="prompt-analysis", cache_policy=NO_CACHE, persist_result=False)
def prompt_analysis_task(run: Run, prepared: prompt_stage.PreparedAnalysis) -> PromptAnalysisStatus:
    """Replay the prompts on the engine and judge them."""
    with progress_artifact(prompt_stage.STAGE):
        return prompt_stage.analyse_prompts(run, prepared)


def obtain_analysis(run: Run, compute: Callable[[], object] | None) -> PromptAnalysisStatus | None:
    """Have the prompt analysis in the run directory: that of an earlier run with the same inputs, else by `compute`.

    With `compute` None nothing is computed, and None says that no earlier run's can be used. The table of verdicts is
    shown in the UI. Raises what `compute` raises.
    """
    if not obtain_stage(run, prompt_stage.STAGE, prompt_analysis_key, compute, complete=_is_complete):
        return None
    status = earlier_analysis(run)
    if status is not None:
        with showing("the verdicts"):
            _show(status)
    return status


def _is_complete(run: Run) -> bool:
    """A prompt or plugin that could not be measured this time is tried again by the next run."""
    status = earlier_analysis(run)
    wanted = set(run.parameters.prompt_analysis.plugins)
    return status is not None and wanted <= set(status.plugins) and not any(p.errors for p in status.plugins.values())


def _show(status: PromptAnalysisStatus) -> None:
    create_table_artifact(
        [
            {"prompt": index, "plugin": plugin.plugin, "verdict": verdict.value if verdict else "not measured"}
            for plugin in status.plugins.values()
            for index, verdict in plugin.per_prompt.items()
        ],
        key="verdicts",
        description="Verdict per prompt",
    )
    culprit = status.culprit
    if culprit is not None:
        place = {name: getattr(culprit, name) for name in ("module", "layer", "head", "position", "prompt")}
        found = {name: str(value) for name, value in place.items() if value is not None}
        row = {"phase": culprit.phase.value, **found, "confirmed": str(culprit.confirmed)}
        create_table_artifact([row], key="culprit", description="First divergent module, as deep as it was located")
