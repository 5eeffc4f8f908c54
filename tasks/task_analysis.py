"""Task of the task analysis."""

from __future__ import annotations

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from accuracy_core.errors import InfrastructureError
from accuracy_core.pipeline.earlier import earlier_task_status
from accuracy_core.pipeline.run import Run
from accuracy_core.pipeline.stage_keys import task_analysis_key
from accuracy_core.pipeline.task_stage import STAGE, analyse_tasks
from accuracy_core.schemas import TaskStatus
from tasks.opaque import opaque
from tasks.showing import showing
from tasks.stage_cache import obtain_stage


@task(name="task-analysis", cache_policy=NO_CACHE, persist_result=False)
def task_analysis_task(run: Run) -> TaskStatus:
    """Scores against thresholds."""
    return analyse_tasks(run)


def obtain_task_status(run: Run) -> TaskStatus:
    """The task analysis of an earlier run with the same results and thresholds, else a new one; shown in the UI."""
    obtain_stage(run, STAGE, task_analysis_key, lambda: task_analysis_task(opaque(run)))
    status = earlier_task_status(run)
    if status is None:
        raise InfrastructureError("the task analysis left no task_status.json", fix="is the disk full?")
    with showing("the scores"):
        _show(run, status)
    return status


def _show(run: Run, status: TaskStatus) -> None:
    judged = {row.key: row for row in status.thresholds if row.key}
    create_table_artifact(
        [
            {
                "score": row.key,
                "value": f"{row.value:.4f}",
                "bound": f"{judged[row.key].bound:.4f}" if row.key in judged else "",
                "passed": str(judged[row.key].passed) if row.key in judged else "not judged",
            }
            for row in status.scores
        ],
        key="scores",
        description=f"Scores of {run.model_name}",
    )
