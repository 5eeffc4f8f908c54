"""`assay doctor`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from accuracy_core.outcome import ExitCode
from accuracy_core.schemas import Severity

STYLE = {Severity.INFO: "green", Severity.WARNING: "yellow", Severity.ERROR: "red"}
WORD = {Severity.INFO: "ok", Severity.WARNING: "note", Severity.ERROR: "wrong"}


def doctor(
    engine_python: Annotated[str | None, typer.Option(help="interpreter of the engine's environment")] = None,
) -> None:
    """Check both environments, the device cores, the cache and the Prefect API, and say what to do."""
    from flows.health import check_all

    console = Console()
    table = Table("", "what", "found", "what to do", show_lines=False)
    findings = check_all(engine_python)
    for finding in findings:
        style = STYLE[finding.severity]
        table.add_row(Text(WORD[finding.severity], style), finding.check, Text(finding.evidence), Text(finding.fix))
    console.print(table)
    wrong = any(finding.severity is Severity.ERROR for finding in findings)
    raise typer.Exit(ExitCode.CONFIGURATION if wrong else ExitCode.PASSED)
