"""Tasks of the prompt analysis: references without the device, then the replay on it."""

from __future__ import annotations

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from accuracy_core.pipeline import prompt_stage
from accuracy_core.pipeline.run import Run
from accuracy_core.schemas import PromptAnalysisStatus
from tasks.goldens import obtain_goldens
from tasks.progress import progress_artifact


@task(name="goldens", cache_policy=NO_CACHE, persist_result=False)
def goldens_task(run: Run) -> prompt_stage.PreparedAnalysis:
    """Prompts to analyse and their FP32 and BF16 references, from the cache or computed; no device is held."""
    with progress_artifact(prompt_stage.GOLDENS):
        return prompt_stage.prepare_analysis(run, obtain_goldens)


@task(name="prompt-analysis", cache_policy=NO_CACHE, persist_result=False)
def prompt_analysis_task(run: Run, prepared: prompt_stage.PreparedAnalysis) -> PromptAnalysisStatus:
    """Replay the prompts on the engine and judge them; the table of verdicts is shown in the UI."""
    with progress_artifact(prompt_stage.STAGE):
        status = prompt_stage.analyse_prompts(run, prepared)
    create_table_artifact(
        [
            {"prompt": index, "plugin": plugin.plugin, "verdict": verdict.value if verdict else "not measured"}
            for plugin in status.plugins.values()
            for index, verdict in plugin.per_prompt.items()
        ],
        key="verdicts",
        description="Verdict per prompt",
    )
    return status
