"""`assay goldens`: look after the cache of reference goldens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from accuracy_core.outcome import ExitCode
from flows.cli.exits import exiting_on_errors

if TYPE_CHECKING:
    from accuracy_core.goldens.sharing import TransferReport

goldens = typer.Typer(help="The cache of reference goldens.", no_args_is_help=True)

CacheDir = Annotated[Path | None, typer.Option("--cache-dir", help="root of the cache")]
S3Uri = Annotated[str | None, typer.Option("--s3", help="s3://bucket/prefix of the shared store")]
Keys = Annotated[list[str] | None, typer.Argument(help="keys or unique beginnings of keys; default: all")]
_SHOWN = 12


@goldens.command()
def ls(cache_dir: CacheDir = None) -> None:
    """List what is in the cache, least recently used first."""
    console = Console()
    with exiting_on_errors(console):
        from accuracy_core.goldens.manage import list_entries

        entries = list_entries(cache_dir)
    table = Table("key", "model", "tensors", "MB", "created", "last used", "problem")
    for entry in entries:
        tensors = ", ".join(f"{name} {shapes[0] if shapes else []}" for name, shapes in entry.tensors.items())
        created = f"{entry.created:%Y-%m-%d %H:%M}" if entry.created else ""
        cells = (entry.key[:_SHOWN], entry.model_id, tensors, f"{entry.bytes / 1e6:.1f}", created)
        table.add_row(*map(Text, cells), Text(f"{entry.last_used:%Y-%m-%d %H:%M}"), Text(entry.problem, style="red"))
    console.print(table)
    console.print(f"{len(entries)} goldens, {sum(entry.bytes for entry in entries) / 1e6:.1f} MB", highlight=False)


@goldens.command()
def verify(
    cache_dir: CacheDir = None,
    keep: Annotated[bool, typer.Option("--keep", help="leave damaged entries where they are")] = False,
) -> None:
    """Hash every entry; damaged ones are quarantined. Exit code 1 if there was any."""
    console = Console()
    with exiting_on_errors(console):
        from accuracy_core.goldens.manage import verify_entries

        report = verify_entries(cache_dir, quarantine=not keep)
    damaged = {key: problem for key, problem in report.items() if problem}
    for key, problem in damaged.items():
        console.print(Text(f"{key[:_SHOWN]} {problem}", style="red"))
    console.print(f"{len(report) - len(damaged)} good, {len(damaged)} damaged", highlight=False)
    raise typer.Exit(ExitCode.ERROR if damaged else ExitCode.PASSED)


@goldens.command()
def gc(
    cache_dir: CacheDir = None,
    max_bytes: Annotated[int | None, typer.Option(min=0, help="evict least recently used entries beyond this")] = None,
    quarantine_days: Annotated[float, typer.Option(min=0, help="keep quarantined entries this long")] = 7.0,
) -> None:
    """Remove leftovers of dead writers, old quarantined entries, and entries beyond a size."""
    console = Console()
    with exiting_on_errors(console):
        from accuracy_core.goldens.manage import collect_garbage

        report = collect_garbage(cache_dir, max_bytes=max_bytes, quarantine_days=quarantine_days)
    console.print(
        f"{len(report.evicted)} evicted, {report.quarantined_removed} removed from quarantine, "
        f"{report.bytes_left / 1e6:.1f} MB left",
        highlight=False,
    )


@goldens.command()
def push(keys: Keys = None, s3: S3Uri = None, cache_dir: CacheDir = None) -> None:
    """Upload goldens that the shared store does not hold."""
    console = Console()
    with exiting_on_errors(console):
        from accuracy_core.goldens.manage import find_key
        from accuracy_core.goldens.sharing import push_entries

        chosen = [find_key(key, cache_dir) for key in keys] if keys else None
        _finish(console, "pushed", push_entries(chosen, cache_dir, s3))


@goldens.command()
def pull(
    keys: Annotated[list[str] | None, typer.Argument(help="whole keys; default: all")] = None,
    s3: S3Uri = None,
    cache_dir: CacheDir = None,
) -> None:
    """Download goldens that are not here yet."""
    console = Console()
    with exiting_on_errors(console):
        from accuracy_core.goldens.sharing import pull_entries

        _finish(console, "pulled", pull_entries(keys or None, cache_dir, s3))


def _finish(console: Console, done: str, report: TransferReport) -> None:
    for warning in report.warnings:
        console.print(Text(warning, style="yellow"))
    for key, problem in report.failed.items():
        console.print(Text(f"{key[:_SHOWN]} {problem}", style="red"))
    console.print(
        f"{len(report.moved)} {done}, {len(report.present)} there before, {len(report.failed)} failed", highlight=False
    )
    raise typer.Exit(ExitCode.ERROR if report.failed else ExitCode.PASSED)


@goldens.command()
def export(
    key: Annotated[str, typer.Argument(help="key, or its unique beginning")],
    target: Annotated[Path, typer.Argument(help="file, or folder to write golden.pt into")],
    cache_dir: CacheDir = None,
) -> None:
    """Write one golden as golden.pt."""
    console = Console()
    with exiting_on_errors(console):
        from accuracy_core.goldens.manage import export_golden_pt

        console.print(str(export_golden_pt(key, target, cache_dir)), highlight=False, soft_wrap=True)
