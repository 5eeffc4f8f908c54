"""What the user sees in the terminal: progress while it runs, then the verdict."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from accuracy_core.errors import AssayError
from accuracy_core.outcome import Banner
from accuracy_core.pipeline.progress import Event, listening
from accuracy_core.prompts.conclusion import Conclusion

STYLE = {Banner.GREEN: "green", Banner.YELLOW: "yellow", Banner.RED: "red", Banner.GREY: "bright_black"}


@contextlib.contextmanager
def live_progress(console: Console) -> Iterator[None]:
    """One line per stage. Without a terminal: a line when a stage starts and ends."""
    if not console.is_terminal:
        with listening(lambda event: _plain(console, event)):
            yield
        return
    columns = (
        SpinnerColumn(), TextColumn("{task.description:18}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[message]}"),
    )  # fmt: skip
    with Progress(*columns, console=console) as bars:
        rows: dict[str, TaskID] = {}

        def show(event: Event) -> None:
            if event.stage not in rows:
                rows[event.stage] = bars.add_task(event.stage, total=None, message="")
            total = event.total or None
            bars.update(rows[event.stage], completed=event.done, total=total, message=event.message)

        with listening(show):
            yield


def _plain(console: Console, event: Event) -> None:
    if event.message:
        console.print(Text(f"[{event.stage}] {event.message}"))


def show_error(console: Console, error: AssayError) -> None:
    """The error, what to do, and which kind of problem it is."""
    console.print(Text(f"{error.outcome.value.replace('_', ' ')} error: {error}", style="red"))


def show_conclusion(console: Console, conclusion: Conclusion, report: str | None) -> None:
    """The verdict in a box in its banner's colour."""
    text = Text(conclusion.headline)
    culprit = conclusion.culprit
    if culprit is not None:
        text.append(f"\nculprit: phase {culprit.phase.value}")
        for name in ("module", "layer", "head", "position"):
            value = getattr(culprit, name)
            if value is not None:
                text.append(f", {name} {value}")
        if culprit.branch:
            text.append(f"\nbranch: {culprit.branch}")
    for suspect in conclusion.suspects:
        text.append(f"\nlook at: {suspect}")
    if report:
        text.append(f"\nreport: {report}")
    verdict = conclusion.verdict.value if conclusion.verdict else "none"
    title = f"outcome: {conclusion.outcome.value}   verdict: {verdict}   banner: {conclusion.banner.value}"
    console.print(Panel(text, title=Text(title), style=STYLE[conclusion.banner]))
