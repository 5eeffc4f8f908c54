"""`assay up`."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

_STACK = "deployments.up"  # a name, no import: what runs where is decided above the flows


def up(
    port: Annotated[int | None, typer.Option(help="port of the server; default 4200")] = None,
    home: Annotated[str | None, typer.Option(help="database and logs; default $PREFECT_HOME, else ~/.assay")] = None,
    runs: Annotated[str | None, typer.Option(help="where run directories go; default ./runs")] = None,
    device_pool: Annotated[list[str] | None, typer.Option(help="pool with a worker here; may be repeated")] = None,
    auth: Annotated[bool, typer.Option("--auth", help="make an auth string, kept in the home")] = False,
    webhook: Annotated[str | None, typer.Option(help="URL that is called when a run fails or crashes")] = None,
    once: Annotated[bool, typer.Option("--once", help="stop again as soon as everything is up")] = False,
) -> None:
    """Start a Prefect server, pools, workers and deployments on this machine. Ctrl-C stops everything."""
    words = [sys.executable, "-m", _STACK]
    for name, value in (("port", port), ("home", home), ("runs", runs), ("webhook", webhook)):
        words += [f"--{name}={value}"] if value is not None else []
    words += [f"--device-pool={pool}" for pool in device_pool or []]
    words += ["--auth"] if auth else []
    words += ["--once"] if once else []
    os.execv(sys.executable, words)
