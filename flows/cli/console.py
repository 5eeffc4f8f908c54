"""What the user sees in the terminal: progress while it runs, then the verdict."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from accuracy_core.errors import AssayError
from accuracy_core.outcome import Banner
from accuracy_core.pipeline.progress import Event, listening
from accuracy_core.prompts.conclusion import Conclusion

SECONDS_BETWEEN_COUNTS = 5.0
LOG_LINES = 12
NOTES = 6  # the report has all of them
STYLE = {Banner.GREEN: "green", Banner.YELLOW: "yellow", Banner.RED: "red", Banner.GREY: "bright_black"}


@contextlib.contextmanager
def live_progress(console: Console) -> Iterator[None]:
    """One line per stage. Without a terminal: a line when a stage starts and ends."""
    if not console.is_terminal:
        with listening(PlainLines(console)):
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


class PlainLines:
    """Lines for a log: every new message, and counts at most every `SECONDS_BETWEEN_COUNTS`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: dict[str, tuple[str, float]] = {}

    def __call__(self, event: Event) -> None:
        said, when = self._last.get(event.stage, ("", 0.0))
        new = event.message not in ("", said)
        due = event.total > 1 and time.monotonic() - when >= SECONDS_BETWEEN_COUNTS
        if not new and not due:
            return
        self._last[event.stage] = (event.message or said, time.monotonic())
        count = f" {event.done}/{event.total}" if event.total > 1 else ""
        self._console.print(Text(f"[{event.stage}]{count} {event.message}".rstrip()))


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
        if culprit.confirmation:
            word = {True: "confirmed", False: "not confirmed", None: "no proof"}[culprit.confirmed]
            text.append(f"\n{word}: {culprit.confirmation}")
        if culprit.branch:
            text.append(f"\nbranch: {culprit.branch}")
        for contradiction in culprit.contradictions:
            text.append(f"\ncontradiction: {contradiction}")
    if conclusion.fix:
        text.append(f"\nwhat to do: {conclusion.fix}")
    for note in conclusion.notes[:NOTES]:
        text.append(f"\nnote: {note}")
    for suspect in conclusion.suspects:
        text.append(f"\nlook at: {suspect}")
    if conclusion.log_tail:
        text.append("\nlast lines of the log:\n" + "\n".join(conclusion.log_tail.splitlines()[-LOG_LINES:]))
    if report:
        text.append(f"\nreport: {report}")
    verdict = conclusion.verdict.value if conclusion.verdict else "none"
    title = f"outcome: {conclusion.outcome.value}   verdict: {verdict}   banner: {conclusion.banner.value}"
    console.print(Panel(text, title=Text(title), style=STYLE[conclusion.banner]))
