"""From a conclusion to a Prefect state. A verdict, a wrong set-up and a dead engine are told apart by name and type."""

from __future__ import annotations

from typing import Any

from prefect.client.schemas.objects import State
from prefect.states import Completed, Crashed, Failed

from accuracy_core.prompts.conclusion import Conclusion
from flows.current_run import under_worker


def state_of(conclusion: Conclusion) -> State[Any]:
    """Completed, Failed under the conclusion's own name, or Crashed; the conclusion is the state's data.

    Under a worker nobody asks for the data, and Prefect would log at length that it is no exception: there is none.
    """
    text = conclusion.headline
    data = None if under_worker() else conclusion
    match conclusion.state:
        case "Completed":
            return Completed(message=f"ACCURACY: {text}", data=data)
        case "Crashed":
            return Crashed(message=f"infra: {text}", data=data)
        case "AccuracyFailed":
            return Failed(name="AccuracyFailed", message=f"ACCURACY: {text}", data=data)
        case "ConfigurationFailed":
            return Failed(name="ConfigurationFailed", message=f"CONFIGURATION: {text}", data=data)
        case "NotMeasured":
            return Failed(name="NotMeasured", message=f"NOT MEASURED: {text}", data=data)
