"""The `assay` command."""

from __future__ import annotations

import typer

from flows.cli.doctor import doctor
from flows.cli.report import report
from flows.cli.run import run

app = typer.Typer(
    name="assay",
    help="Is this inference engine numerically right, and if not, which module made it wrong?",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # locals may hold secrets
    add_completion=False,
)
app.command()(run)
app.command()(report)
app.command()(doctor)


def main() -> None:
    """Entry point of the console script."""
    app()
