"""The prompt analysis: the replay on the device and its judgement, in one flow of the device pool."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from accuracy_core.outcome import Verdict
from accuracy_core.pipeline.prompt_stage import prepare_analysis
from accuracy_core.pipeline.run import Run
from accuracy_core.prompts.conclusion import conclude
from accuracy_core.schemas import RunParameters
from flows.current_run import is_alone
from flows.naming import run_name
from flows.stage_flow import run_as_stage
from flows.states import state_of
from tasks.goldens import obtain_goldens
from tasks.opaque import opaque
from tasks.prompt_analysis import goldens_task, obtain_analysis, prompt_analysis_task


@flow(name="device-prompt", flow_run_name=run_name, retries=0, persist_result=False)
def device_prompt(parameters: RunParameters = RunParameters()) -> State[Any]:  # noqa: B008 - immutable
    """Replay prompts on the engine and judge its logits against the references.

    Args:
        parameters: as of accuracy-debugger; the prompts are the given ones, or those that the task analysis left in
            the run directory. References that the parent has computed come from the cache.
    """
    return run_as_stage(parameters, ["prompt_analysis"], _analyse)


def _analyse(run: Run) -> State[Any]:
    def compute() -> None:
        prepared = goldens_task(opaque(run)) if is_alone() else prepare_analysis(run, obtain_goldens, recording=False)
        prompt_analysis_task(opaque(run), opaque(prepared))

    analysis = obtain_analysis(run, compute)
    if analysis is not None and analysis.verdict is Verdict.PASS:
        return Completed(message=f"numerics pass on all {analysis.n_prompts} analysed prompts")
    return state_of(conclude(None, analysis, skipped=["evaluate", "task_analysis"]))
