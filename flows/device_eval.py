"""The evaluation: everything that needs the device for it, in one flow of the device pool."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from accuracy_core.pipeline.evaluation import local_path
from accuracy_core.pipeline.run import Run
from accuracy_core.pipeline.session import EvaluationSession
from accuracy_core.schemas import RunParameters
from flows.naming import run_name
from flows.stage_flow import run_as_stage
from tasks.evaluation import evaluate_task, obtain_evaluation, stop_server_task
from tasks.opaque import opaque


@flow(name="device-eval", flow_run_name=run_name, retries=0, persist_result=False)
def device_eval(parameters: RunParameters = RunParameters()) -> State[Any]:  # noqa: B008 - immutable
    """Start the engine's server on leased cores, run lm-eval against it, stop it and verify that nothing is left.

    Args:
        parameters: as of accuracy-debugger; only the evaluation is run.
    """
    return run_as_stage(parameters, ["evaluate"], _evaluate)


def _evaluate(run: Run) -> State[Any]:
    scores: dict[str, float] = {}

    def compute() -> None:
        with EvaluationSession(run, local_path(run.run_dir.server_log)) as session:
            scores.update(evaluate_task(opaque(run), opaque(session)))
            stop_server_task(opaque(session))

    obtain_evaluation(run, compute)
    told = ", ".join(f"{key} {value:.4f}" for key, value in sorted(scores.items())[:8])
    return Completed(message=f"evaluated: {told or 'an earlier run with the same inputs did it'}")
