"""How a command ends that cannot do what it was asked: the error and what to do, then the exit code of its outcome."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from accuracy_core.errors import AssayError
from accuracy_core.outcome import exit_code


@contextmanager
def exiting_on_errors(console: Console) -> Iterator[None]:
    """Show an AssayError of the body on `console` and exit with its code; other exceptions pass."""
    try:
        yield
    except AssayError as error:
        from flows.cli.console import show_error  # loads rich's progress bars: needed only now

        show_error(console, error)
        raise typer.Exit(exit_code(error.outcome, None)) from None
