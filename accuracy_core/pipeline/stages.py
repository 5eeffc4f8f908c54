"""Records of what each stage did."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime

from accuracy_core.errors import AssayError
from accuracy_core.outcome import Outcome
from accuracy_core.pipeline import progress
from accuracy_core.pipeline.stage_files import StageFiles
from accuracy_core.pipeline.versions import versions
from accuracy_core.schemas import RunDir, StageRecord, fingerprint

#: records of a part of a stage -> the stage, as parameters call it
PARTS = {"goldens": "prompt_analysis", "preflight_requests": "preflight"}


@contextlib.contextmanager
def recorded(run_dir: RunDir, stage: str, inputs: object, outputs: list[str] | None = None) -> Iterator[None]:
    """Write `stages/<stage>.json` however the block ends; errors pass through.

    `outputs`, paths relative to the run directory, may be filled inside the block.
    """
    started, clock = datetime.now(UTC), time.monotonic()
    progress.report(stage, message="started")
    record = {"stage": stage, "inputs_hash": fingerprint(inputs), "started": started, "versions": versions()}

    def write(**fields: object) -> None:
        done = StageRecord.model_validate({**record, "duration_s": time.monotonic() - clock, **fields})
        run_dir.write(run_dir.stages / f"{stage}.json", done)

    try:
        yield
    except AssayError as error:
        write(status="failed", outcome=error.outcome, message=error.message)
        raise
    except BaseException as error:
        write(status="failed", outcome=Outcome.INFRASTRUCTURE, message=f"{type(error).__name__}: {error}"[:2000])
        raise
    write(status="done", outputs=outputs or [])
    progress.report(stage, 1, 1, "done")


def record_cached(run_dir: RunDir, stage: str, key: str, found: StageFiles) -> None:
    """Write `stages/<stage>.json` for results that an earlier run with the same inputs left."""
    message = f"results of an earlier run with the same inputs, computed in {found.root}"
    record = StageRecord(
        stage=stage,
        inputs_hash=key,
        started=datetime.now(UTC),
        duration_s=0.0,
        status="cached",
        message=message,
        versions=versions(),
        outputs=found.outputs,
    )
    run_dir.write(run_dir.stages / f"{stage}.json", record)
    progress.report(stage, 1, 1, message)
