"""From a conclusion to a Prefect state. A verdict, a wrong set-up and a dead engine are told apart by name and type."""

from __future__ import annotations

from typing import Any

from accuracy_core.prompts.conclusion import Conclusion
from prefect.client.schemas.objects import State
from prefect.states import Completed, Crashed, Failed

from accuracy_core.outcome import ExitCode, Outcome


def state_of(conclusion: Conclusion) -> State[Any]:
    """Completed, `AccuracyFailed`, `ConfigurationFailed` or Crashed."""
    text = conclusion.headline
    if conclusion.outcome is Outcome.CONFIGURATION:
        return Failed(name="ConfigurationFailed", message=f"CONFIGURATION: {text}", data=conclusion)
    if conclusion.outcome is Outcome.INFRASTRUCTURE:
        return Crashed(message=f"infra: {text}", data=conclusion)
    if conclusion.exit_code == ExitCode.ACCURACY:
        return Failed(name="AccuracyFailed", message=f"ACCURACY: {text}", data=conclusion)
    if conclusion.exit_code == ExitCode.PASSED:
        return Completed(message=f"ACCURACY: {text}", data=conclusion)
    return Failed(name="NotMeasured", message=f"NOT MEASURED: {text}", data=conclusion)
