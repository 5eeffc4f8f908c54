"""What the engine's loader said, from the file that it left beside the engine's log."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError

from accuracy_core.engines.load_report import load_report_path
from accuracy_core.prompts.preflight.facts import LoadReport
from accuracy_core.schemas import Part


class _Noted(Part):
    model: str
    missing: list[str] = Field(default_factory=list)
    error: str = ""


def target_loads(log_path: Path, model: str) -> tuple[LoadReport, ...]:
    """The report of the engine that wrote `log_path`; () without one, or when it is about another `model`."""
    try:
        noted = _Noted.model_validate_json(load_report_path(log_path).read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return ()
    if noted.model != model:
        return ()
    return (LoadReport("target", missing=tuple(noted.missing), error=noted.error),)
