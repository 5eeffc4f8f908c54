"""Tasks of the module validation."""

from __future__ import annotations

from collections.abc import Callable

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from accuracy_core.pipeline import module_stage
from accuracy_core.pipeline.earlier import earlier_modules
from accuracy_core.pipeline.run import Run
from accuracy_core.pipeline.stage_keys import module_validation_key
from accuracy_core.schemas import ModuleValidationResult
from tasks.progress import progress_artifact
from tasks.showing import showing
from tasks.stage_cache import obtain_stage


@task(name="module-validation", cache_policy=NO_CACHE, persist_result=False)
def module_validation_task(run: Run) -> ModuleValidationResult:
    """Run the target's modules on seeded inputs and judge them."""
    with progress_artifact(module_stage.STAGE):
        return module_stage.check_modules(run)


def obtain_modules(run: Run, compute: Callable[[], object] | None) -> ModuleValidationResult | None:
    """Have the module validation in the run directory: that of an earlier run with the same inputs, else by `compute`.

    With `compute` None nothing is computed, and None says that no earlier run's can be used. The table of verdicts is
    shown in the UI. Raises what `compute` raises.
    """
    if not obtain_stage(run, module_stage.STAGE, module_validation_key, compute, complete=_is_complete):
        return None
    result = earlier_modules(run)
    if result is not None:
        with showing("the modules"):
            _show(result)
    return result


def _is_complete(run: Run) -> bool:
    """A module that could not be measured this time is tried again by the next run."""
    result = earlier_modules(run)
    return result is not None and not result.unmeasured


def _show(result: ModuleValidationResult) -> None:
    create_table_artifact(
        [
            {
                "module": check.name,
                "verdict": check.verdict.value if check.verdict else "not measured",
                "sigma ratio": f"{check.sigma_ratio:.3g}",
                "BC": f"{check.bc:.4f}",
                "remark": (check.finding or check.reason)[:300],
            }
            for check in result.checks
        ],
        key="modules",
        description="Verdict per module",
    )
