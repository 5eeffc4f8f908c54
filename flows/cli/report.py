"""`assay report`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from accuracy_core.errors import AssayError
from accuracy_core.outcome import exit_code


def report(
    run_dir: Annotated[str, typer.Argument(help="directory of a run, local or s3://")] = "runs/latest",
) -> None:
    """Build the report of a run directory again."""
    console = Console()
    from accuracy_core.pipeline.mirror import synchronised, working_dir
    from accuracy_core.report import generate_report
    from accuracy_core.schemas import RunDir
    from flows.cli.console import show_error

    try:
        with synchronised(run_dir):
            generate_report(working_dir(run_dir))
        console.print(str(RunDir.at(run_dir).report_html), highlight=False)
    except AssayError as error:
        show_error(console, error)
        raise typer.Exit(exit_code(error.outcome, None)) from None
