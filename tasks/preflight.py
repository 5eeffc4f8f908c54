"""Tasks of the preflight, and the calls that every flow makes."""

from __future__ import annotations

from collections.abc import Callable

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from accuracy_core.errors import AssayError
from accuracy_core.pipeline import preflight_stage
from accuracy_core.pipeline.preflight_findings import earlier_preflight
from accuracy_core.pipeline.run import Run
from accuracy_core.pipeline.stage_keys import preflight_key, preflight_requests_key
from accuracy_core.prompts.preflight import PreflightReport
from tasks.opaque import opaque
from tasks.showing import showing
from tasks.stage_cache import obtain_stage


@task(name="preflight", cache_policy=NO_CACHE, persist_result=False)
def preflight_task(run: Run) -> PreflightReport:
    """Checkpoint, tokenizer and the engine's settings against each other; no device is held."""
    return preflight_stage.check_setup(run)


@task(name="preflight-requests", cache_policy=NO_CACHE, persist_result=False)
def preflight_requests_task(run: Run) -> PreflightReport:
    """What the evaluation's server saw and answered, against what was meant."""
    return preflight_stage.check_requests(run)


def require_right_setup(run: Run) -> None:
    """Have the preflight of a run whose stages name it: the first thing in every flow, before engines and goldens.

    A right set-up that an earlier run with the same inputs saw is not looked at again. Raises ConfigurationError with
    the evidence and the fix of every error.
    """
    if "preflight" in run.parameters.stages:
        _checked(run, preflight_stage.STAGE, preflight_key, preflight_task)


def require_right_requests(run: Run) -> None:
    """The second part, once the evaluation's results are there and before goldens are computed from its requests.

    Does nothing in a run whose stages leave the preflight out. Raises as `require_right_setup`.
    """
    if "preflight" in run.parameters.stages:
        _checked(run, preflight_stage.REQUESTS, preflight_requests_key, preflight_requests_task)


def _checked(run: Run, stage: str, key: Callable[[Run], str], check: Callable[[Run], PreflightReport]) -> None:
    def complete(run: Run) -> bool:
        return preflight_stage.is_complete(run, stage)

    try:
        obtain_stage(run, stage, key, lambda: check(opaque(run)), complete=complete)
        report: PreflightReport | None = preflight_stage.adopt(run, stage)
    except AssayError:
        with showing("the preflight"):
            _show(earlier_preflight(run))
        raise
    with showing("the preflight"):
        _show(report)


def _show(report: PreflightReport | None) -> None:
    if report is None:
        return
    rows = [
        {"check": result.check, "says": result.standing, "found": finding.evidence, "what to do": finding.fix}
        for result in report.results
        for finding in result.findings
    ]
    made = f"{len(report.results)} checks"
    create_table_artifact(rows or [{"check": made, "says": "fine"}], key="preflight", description=f"Preflight: {made}")
