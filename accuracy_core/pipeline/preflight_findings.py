"""The findings of a run's preflight: `preflight.json`, and what an engine that came up adds to it."""

from __future__ import annotations

from pathlib import Path

from accuracy_core.pipeline.mirror import synchronised
from accuracy_core.pipeline.run import Run
from accuracy_core.prompts.preflight import PreflightFacts, PreflightReport, run_preflight
from accuracy_core.prompts.preflight.loading import target_loads


def earlier_preflight(run: Run) -> PreflightReport | None:
    """What the run directory holds; None if there was no preflight."""
    with synchronised(run.parameters.output_dir):
        path = run.run_dir.preflight_json
        return run.run_dir.read(path, PreflightReport) if path.exists() else None


def keep_findings(run: Run, found: PreflightReport) -> PreflightReport:
    """Add `found` to the run's report, and raise its errors as ConfigurationError. Returns the whole report."""
    path = run.run_dir.preflight_json
    before = run.run_dir.read(path, PreflightReport) if path.exists() else PreflightReport()
    report = before.followed_by(found)
    run.run_dir.write(path, report)
    error = found.error()
    if error is not None:
        raise error
    return report


def check_loaded(run: Run, log_path: Path) -> None:
    """Check what the engine that writes `log_path` loaded, as far as it said; inside a stage that is recorded.

    Raises ConfigurationError when weights were missing and that was not accepted.
    """
    loads = target_loads(log_path, run.model_path)
    if loads:
        found = run_preflight(PreflightFacts(spec=run.engine, loads=loads), ["engine"])
        keep_findings(run, found.accepting(run.parameters.preflight.accept))
