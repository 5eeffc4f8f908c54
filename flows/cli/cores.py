"""`assay cores`: who holds which device core of this host."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from accuracy_core.engines.cores import Holder, holders, lock_directory
from accuracy_core.engines.devices import platform_cores
from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas import Platform
from flows.cli.exits import exiting_on_errors


def cores(
    platform: Annotated[str | None, typer.Option(help="cpu, cuda or neuron; default: all that this host has")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="for machines")] = False,
) -> None:
    """Show which device cores of this host are free, and which process holds the others, with its note and since when.

    Exit code: 0, or 3 for a wrong set-up.
    """
    console = Console(soft_wrap=True)
    with exiting_on_errors(console):
        rows = _rows(_platforms(platform))
        directory = str(lock_directory())
    if as_json:
        typer.echo(json.dumps({"lock_directory": directory, "cores": rows}, indent=2))
        return
    table = Table("core", "state", "process", "held by", "since")
    for row in rows:
        since = str(row["since"] or "")
        process = str(row["pid"] or "")
        table.add_row(f"{row['platform']} {row['core']}", row["state"], process, Text(str(row["note"] or "")), since)
    console.print(table)
    console.print(Text(f"locks: {directory}"))


def _platforms(name: str | None) -> list[Platform]:
    known = {item.value: item for item in Platform}
    if name is not None and name not in known:
        raise ConfigurationError(f"unknown platform {name!r}", fix=f"known: {', '.join(known)}")
    return [known[name]] if name is not None else list(Platform)


def _rows(platforms: list[Platform]) -> list[dict[str, Any]]:
    found = []
    for platform in platforms:
        held = {holder.core: holder for holder in holders(platform)}
        found += [_row(platform, core, held.get(core)) for core in platform_cores(platform)]
    return found


def _row(platform: Platform, core: int, holder: Holder | None) -> dict[str, Any]:
    row: dict[str, Any] = {"platform": platform.value, "core": core, "state": "held" if holder else "free"}
    since = datetime.fromtimestamp(holder.since, UTC).isoformat(timespec="seconds") if holder else None
    return row | {"pid": holder.pid if holder else None, "note": holder.note if holder else None, "since": since}
