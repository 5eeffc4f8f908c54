"""Where an engine leaves what its loader said about the checkpoint: beside its log."""

from __future__ import annotations

from pathlib import Path

#: read by `assay_inside.extension`
VARIABLE = "ASSAY_LOAD_REPORT"


def load_report_path(log_path: Path) -> Path:
    """`server.load.json` for `server.log`."""
    return log_path.absolute().with_suffix(".load.json")


def load_report_environment(log_path: Path) -> dict[str, str]:
    """Environment with which an engine writes its report; that of an earlier engine is removed."""
    path = load_report_path(log_path)
    path.unlink(missing_ok=True)
    return {VARIABLE: str(path)}
