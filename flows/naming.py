"""Names of flow runs: what a user reads in the list."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any
from uuid import UUID

from accuracy_core.grading.order import GradeOrder
from accuracy_core.schemas import RunParameters
from tasks.showing import showing


def run_name() -> str:
    """`<model>-<platform>[-<fault>]-<what>` of the current flow run, which has a parameter `parameters`."""
    from prefect.runtime import flow_run

    given: Any = flow_run.parameters.get("parameters")
    parameters = given if isinstance(given, RunParameters) else RunParameters.model_validate(given or {})
    return name_of(parameters)


def grade_name() -> str:
    """`grade-<task>-<submission>-<device>` of the current flow run, which has a parameter `order`."""
    from prefect.runtime import flow_run

    given: Any = flow_run.parameters.get("order")
    order = given if isinstance(given, GradeOrder) else GradeOrder.model_validate(given)
    return f"grade-{order.task}-{PurePath(order.submission).stem}-{order.device}"


def name_of(parameters: RunParameters) -> str:
    """As `run_name`, of any parameters."""
    engine = parameters.engine
    model = engine.model.rstrip("/").rsplit("/", 1)[-1]
    fault = f"-{engine.fault.name}" if engine.fault else ""
    return f"{model}-{engine.platform.value}{fault}-{_what(parameters)}"


def tags_of(parameters: RunParameters) -> list[str]:
    """Tags by which runs can be found again."""
    engine = parameters.engine
    return [f"model:{engine.model.rstrip('/').rsplit('/', 1)[-1]}", f"device:{engine.platform.value}"]


def tag_run(tags: list[str]) -> None:
    """Add `tags` to the current flow run, and to nothing else.

    Prefect's own context of tags reaches what a run starts, not the run itself, and a task with tags asks the API for
    concurrency slots before it starts.
    """
    from prefect.client.orchestration import get_client
    from prefect.runtime import flow_run

    with showing("the tags"), get_client(sync_client=True) as client:
        client.update_flow_run(UUID(flow_run.id), tags=sorted({*flow_run.tags, *tags}))


def _what(parameters: RunParameters) -> str:
    if "evaluate" in parameters.stages or "task_analysis" in parameters.stages:
        return "+".join(parameters.evaluation.tasks)
    if "prompt_analysis" in parameters.stages:
        return "prompts"
    return "modules" if "module_validation" in parameters.stages else "report"
