"""`assay report`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from flows.cli.exits import exiting_on_errors


def report(
    run_dir: Annotated[str, typer.Argument(help="directory of a run, local or s3://")] = "runs/latest",
) -> None:
    """Build the report of a run directory again."""
    console = Console()
    from accuracy_core.pipeline.mirror import synchronised, working_dir
    from accuracy_core.report import generate_report
    from accuracy_core.schemas import RunDir

    with exiting_on_errors(console):
        with synchronised(run_dir):
            generate_report(working_dir(run_dir))
        console.print(str(RunDir.at(run_dir).report_html), highlight=False)
