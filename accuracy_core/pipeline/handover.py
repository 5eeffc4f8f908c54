"""Why a stage that ran elsewhere failed, as typed as if it had run here."""

from __future__ import annotations

from pathlib import Path

from accuracy_core import errors
from accuracy_core.errors import AssayError, InfrastructureError
from accuracy_core.schemas import RunDir
from accuracy_core.schemas.base import Schema


class StageFailure(Schema):
    """`handover/<run id>.json` in the run directory: written by the stage's run, read and removed by its parent."""

    kind: str
    message: str
    fix: str = ""
    log_tail: str = ""

    @classmethod
    def of(cls, error: AssayError) -> StageFailure:
        return cls(
            kind=type(error).__name__,
            message=error.message,
            fix=error.fix,
            log_tail=str(getattr(error, "log_tail", "")),
        )

    def error(self) -> AssayError:
        """The error again: of the same class, or InfrastructureError where this version knows no such class."""
        kind = getattr(errors, self.kind, None)
        if not (isinstance(kind, type) and issubclass(kind, AssayError)):
            kind = InfrastructureError
        error: AssayError = kind(self.message, fix=self.fix)
        if hasattr(error, "log_tail"):
            error.log_tail = self.log_tail
        return error


def leave_failure(run_dir: RunDir, run_id: str, error: AssayError) -> None:
    """Write down `error` for the parent of run `run_id`."""
    run_dir.write(run_dir.root / "handover" / f"{run_id}.json", StageFailure.of(error))


def take_failure(run_dir: RunDir, run_id: str) -> AssayError | None:
    """The error that run `run_id` left, or None; the file is removed."""
    path = run_dir.root / "handover" / f"{run_id}.json"
    if not path.exists():
        return None
    failure = run_dir.read(path, StageFailure)
    path.unlink()
    if isinstance(path, Path) and not any(path.parent.iterdir()):
        path.parent.rmdir()
    return failure.error()
