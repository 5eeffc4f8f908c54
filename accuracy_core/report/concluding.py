"""The conclusion of a run that only exists as files."""

from __future__ import annotations

from accuracy_core.errors import AssayError, ConfigurationError, InfrastructureError, NotMeasuredError
from accuracy_core.outcome import Outcome
from accuracy_core.prompts.conclusion import Conclusion, conclude
from accuracy_core.report.evidence import RunEvidence
from accuracy_core.schemas import StageRecord


def conclude_from_files(found: RunEvidence) -> Conclusion:
    """Decide from task status, analysis and stage records. A damaged file is a configuration error of its own."""
    task = analysis = preflight = modules = None
    error: BaseException | None = None
    skipped: list[str] = []
    try:
        task = found.task
        analysis = found.analysis
        preflight = found.preflight
        modules = found.modules
        failed = [record for record in found.stages if record.status == "failed" and record.stage != "report"]
        skipped = [record.stage for record in found.stages if record.status == "skipped"]
        error = _error(failed[-1], found) if failed else None
    except AssayError as damaged:
        error = damaged
    return conclude(task, analysis, error=error, skipped=skipped, preflight=preflight, modules=modules)


def _error(record: StageRecord, found: RunEvidence) -> AssayError:
    if record.outcome is Outcome.CONFIGURATION and found.preflight is not None:
        error = found.preflight.error()
        if error is not None:
            return error
    message = f"stage {record.stage}: {record.message or 'failed'}"
    if record.outcome is Outcome.CONFIGURATION:
        return ConfigurationError(message)
    if record.outcome is Outcome.NOT_MEASURED:
        return NotMeasuredError(message)
    return InfrastructureError(message, log_tail=found.log_tail(record.stage))
