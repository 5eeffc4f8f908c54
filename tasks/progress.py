"""Progress artifacts: what the stages report, shown in the Prefect UI while they run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact

from accuracy_core.pipeline.progress import Event, listening
from tasks.showing import showing

MIN_SECONDS_BETWEEN_UPDATES = 2.0


@contextlib.contextmanager
def progress_artifact(stage: str) -> Iterator[None]:
    """While inside, events of `stage` move one progress artifact of the current run."""
    artifact: object = None
    with showing("progress"):
        artifact = create_progress_artifact(0.0, key=f"progress-{stage.replace('_', '-')}", description=stage)
    last = 0.0

    def update(event: Event) -> None:
        nonlocal last
        if event.stage != stage or event.total <= 0 or not isinstance(artifact, UUID):
            return
        now = time.monotonic()
        if now - last < MIN_SECONDS_BETWEEN_UPDATES and event.done < event.total:
            return
        last = now
        with contextlib.suppress(Exception):  # showing progress must never cost a run
            update_progress_artifact(artifact, progress=100.0 * event.done / event.total)

    with listening(update):
        yield
