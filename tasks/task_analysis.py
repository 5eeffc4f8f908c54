"""Task of the task analysis."""

from __future__ import annotations

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from accuracy_core.pipeline.run import Run
from accuracy_core.pipeline.task_stage import analyse_tasks
from accuracy_core.schemas import TaskStatus


@task(name="task-analysis", cache_policy=NO_CACHE, persist_result=False)
def task_analysis_task(run: Run) -> TaskStatus:
    """Scores against thresholds; the table is shown in the UI."""
    status = analyse_tasks(run)
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
    return status
