"""A calibration as a Prefect task: later runs with the same inputs on the same kind of host use its figures again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prefect import task
from prefect.cache_policies import CacheKeyFnPolicy

from accuracy_core.pipeline.calibration import PreparedCalibration, measure
from tasks.progress import progress_artifact

if TYPE_CHECKING:
    from accuracy_core.calibration import Calibration


def _cache_key(context: object, parameters: dict[str, Any]) -> str:
    prepared: PreparedCalibration = parameters["prepared"]
    return f"calibration-{prepared.key()}"


@task(name="calibration", cache_policy=CacheKeyFnPolicy(cache_key_fn=_cache_key), persist_result=True,
      result_serializer="json")  # fmt: skip
def calibration_task(prepared: PreparedCalibration) -> dict[str, Any]:
    """Measure everything. Returns the Calibration as JSON."""
    with progress_artifact("calibration"):
        return measure(prepared).model_dump(mode="json")


def obtain_calibration(prepared: PreparedCalibration, *, refresh: bool = False) -> Calibration:
    """The figures of an earlier run with the same key, or measured now. Raises what the measurements raise."""
    from accuracy_core.calibration import Calibration
    from tasks.opaque import opaque

    return Calibration.model_validate(calibration_task.with_options(refresh_cache=refresh)(opaque(prepared)))
