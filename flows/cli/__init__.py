"""The `assay` command."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from accuracy_core.outcome import ExitCode
from flows.cli.calibrate import calibrate
from flows.cli.cores import cores
from flows.cli.doctor import doctor
from flows.cli.goldens import goldens
from flows.cli.grade import grade
from flows.cli.modules import modules
from flows.cli.report import report
from flows.cli.run import run
from flows.cli.selftest import selftest
from flows.cli.trigger import trigger
from flows.cli.up import up


class _Commands(TyperGroup):
    """Exits with 3 when the command line is wrong. The library's own 2 would read as a failed verdict."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return _as_configuration(super().parse_args, ctx, args)

    def invoke(self, ctx: Any) -> Any:
        return _as_configuration(super().invoke, ctx)


def _as_configuration(call: Any, *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except Exception as error:
        if getattr(error, "exit_code", None) == _USAGE_ERROR and hasattr(error, "format_message"):
            error.exit_code = int(ExitCode.CONFIGURATION)  # type: ignore[attr-defined]
        raise


_USAGE_ERROR = 2
app = typer.Typer(
    name="assay",
    cls=_Commands,
    help="Is this inference engine numerically right, and if not, which module made it wrong?",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # locals may hold secrets
    add_completion=False,
)
app.command()(run)
app.command()(modules)
app.command()(report)
app.command()(doctor)
app.command()(selftest)
app.command()(cores)
app.command()(grade)
app.command()(trigger)
app.command()(up)
app.add_typer(goldens, name="goldens")
app.add_typer(calibrate, name="calibrate")


def main() -> None:
    """Entry point of the console script."""
    app()
