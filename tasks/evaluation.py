"""Tasks of the evaluation. Called directly, never submitted: signals and time-outs then reach the main thread."""

from __future__ import annotations

from collections.abc import Callable

from prefect import task
from prefect.cache_policies import NO_CACHE

from accuracy_core.pipeline.evaluation import STAGE, evaluate
from accuracy_core.pipeline.run import Run
from accuracy_core.pipeline.session import EvaluationSession
from accuracy_core.pipeline.stage_keys import evaluation_key
from tasks.progress import progress_artifact
from tasks.retrying import infrastructure_only
from tasks.stage_cache import obtain_stage


@task(name="evaluate", cache_policy=NO_CACHE, persist_result=False, retries=1, retry_condition_fn=infrastructure_only)
def evaluate_task(run: Run, session: EvaluationSession) -> dict[str, float]:
    """Run lm-eval against the session's server; a second try starts a new server and asks only what is missing."""
    with progress_artifact(STAGE):
        return evaluate(run, session)


@task(name="stop-server", cache_policy=NO_CACHE, persist_result=False)
def stop_server_task(session: EvaluationSession) -> None:
    """Stop the server and verify that nothing of it is alive and the cores are free."""
    session.stop()


def obtain_evaluation(run: Run, compute: Callable[[], object] | None) -> bool:
    """Have the evaluation's results in the run directory: those of an earlier run with the same inputs, else by
    `compute`.

    With `compute` None nothing is computed, and False says that no earlier run's can be used. Raises what `compute`
    raises.
    """
    return obtain_stage(run, STAGE, evaluation_key, compute)
