"""Names of flow runs: what a user reads in the list."""

from __future__ import annotations

from typing import Any

from accuracy_core.schemas import RunParameters


def run_name() -> str:
    """`<model>-<platform>[-<fault>]-<what>` of the current flow run, which has a parameter `parameters`."""
    from prefect.runtime import flow_run

    given: Any = flow_run.parameters.get("parameters")
    parameters = given if isinstance(given, RunParameters) else RunParameters.model_validate(given or {})
    return name_of(parameters)


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


def _what(parameters: RunParameters) -> str:
    if "evaluate" in parameters.stages or "task_analysis" in parameters.stages:
        return "+".join(parameters.evaluation.tasks)
    return "prompts" if "prompt_analysis" in parameters.stages else "report"
