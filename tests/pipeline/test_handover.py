"""What went wrong in a stage that ran elsewhere arrives as what it was."""

from __future__ import annotations

import pytest

from accuracy_core.errors import (
    AssayError,
    ConfigurationError,
    DeviceBusyError,
    EngineDiedError,
    InfrastructureError,
    NotMeasuredError,
)
from accuracy_core.pipeline.handover import StageFailure, leave_failure, take_failure
from accuracy_core.schemas import RunDir


@pytest.mark.parametrize(
    "error",
    [
        ConfigurationError("no such model", fix="give another"),
        EngineDiedError("gone", fix="try again", log_tail="last\nwords"),
        DeviceBusyError("held"),
        NotMeasuredError("no server"),
    ],
)
def test_class_text_and_log_survive_and_the_file_goes(tmp_path, error: AssayError):
    run_dir = RunDir.at(tmp_path)
    leave_failure(run_dir, "run-1", error)
    assert take_failure(run_dir, "run-2") is None
    found = take_failure(run_dir, "run-1")
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["NewerError", "ClassVar", "Outcome"])
def test_an_unknown_class_is_infrastructure_and_nothing_else_is_called(kind):
    found = StageFailure(kind=kind, message="m", fix="f").error()
    assert type(found) is InfrastructureError
    assert found.message == "m"
