"""`assay report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from accuracy_core.errors import AssayError
from accuracy_core.outcome import exit_code


def report(
    run_dir: Annotated[Path, typer.Argument(help="directory of a run")] = Path("runs/latest"),
) -> None:
    """Build the report of a run directory again."""
    console = Console()
    from accuracy_core.report import generate_report
    from flows.cli.console import show_error

    try:
        console.print(str(generate_report(str(run_dir))), highlight=False)
    except AssayError as error:
        show_error(console, error)
        raise typer.Exit(exit_code(error.outcome, None)) from None
