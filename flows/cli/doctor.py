"""`assay doctor`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from accuracy_core.errors import ConfigurationError
from accuracy_core.outcome import ExitCode, Outcome
from accuracy_core.schemas import Finding, Severity
from flows.cli.exits import exiting_on_errors

STYLE = {Severity.INFO: "green", Severity.WARNING: "yellow", Severity.ERROR: "red"}
WORD = {Severity.INFO: "ok", Severity.WARNING: "note", Severity.ERROR: "wrong"}


def doctor(
    engine_python: Annotated[str | None, typer.Option(help="interpreter of the engine's environment")] = None,
    server: Annotated[
        str | None, typer.Option(help="examine this running OpenAI-compatible server instead of this host")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="with --server: the checkpoint to compare with; default: what the server loaded")
    ] = None,
    served_model: Annotated[str | None, typer.Option(help="with --server: the served name, if it has several")] = None,
    api_key_env: Annotated[str | None, typer.Option(help="with --server: environment variable with its key")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="with --server: seconds per request")] = 30,
) -> None:
    """Check both environments, the device cores, the cache and the Prefect API, and say what to do.

    With --server: check tokens, templates, lengths and defaults of somebody's running server.
    """
    console = Console()
    if server is None:
        from flows.health import check_all

        findings: Sequence[Finding] = check_all(engine_python)
    else:
        from accuracy_core.prompts.preflight.server import examine_server

        with exiting_on_errors(console):
            key = _key(api_key_env)
            findings = examine_server(
                server, checkpoint=model, served_model=served_model, api_key=key, timeout_s=timeout
            )
    console.print(_table(findings))
    wrong = any(finding.severity is Severity.ERROR for finding in findings)
    raise typer.Exit(ExitCode.CONFIGURATION if wrong else ExitCode.PASSED)


def _table(findings: Sequence[Finding]) -> Table:
    table = Table("", "what", "found", "what to do", show_lines=False)
    for finding in findings:
        measured = finding.outcome is not Outcome.NOT_MEASURED
        word = Text(WORD[finding.severity], STYLE[finding.severity]) if measured else Text("not measured", "dim")
        table.add_row(word, finding.check, Text(finding.evidence), Text(finding.fix))
    return table


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    value = os.environ.get(variable)
    if not value:
        raise ConfigurationError(f"the environment variable {variable} is not set", fix="put the server's key into it")
    return value
